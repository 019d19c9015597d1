"""The Markdown summary: what comes first, what is escaped, and how long it gets."""

import math
import re

import msgspec
import pytest

from pytest_cutile.reports.cases import RunOutcome
from pytest_cutile.reports.formats import SUMMARY_BYTES, render_job_summary
from pytest_cutile.words.results import ErrorMap, Measured, Result, SampleBlock
from pytest_cutile.words.verdicts import Reason, Verdict
from tests.reports.test_terminal_summary import NOT_MEASURED, result

SLOWER = {"verdict": Verdict.REGRESSION, "reason": Reason.SLOWER, "change": 0.045}


def markdown_summary(results, failed, **facts) -> str:
    return render_job_summary(RunOutcome(results=results, failed=failed, **facts))


def untimed(gate: str, **changes) -> Result:
    return result(**{"gate": gate, "reason": None, **changes})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows(text: str, title: str) -> list[dict[str, str]]:
    """Return the table after `title`, each row by its header."""
    table = text.partition(f"{title}\n\n")[2].partition("\n\n")[0]
    header, _, *lines = map(cells, table.splitlines())
    return [dict(zip(header, line, strict=True)) for line in lines]


def test_without_results_it_says_that_nothing_was_run():
    assert markdown_summary([], []) == "## cuTile kernels: no case was run\n"


def test_a_regression_has_every_figure():
    slow = result(**SLOWER, case="slow", gpu="NVIDIA H200")
    text = markdown_summary([result(), slow], [slow])
    assert text.startswith("## cuTile kernels: 1 of 2 cases failed\n")
    assert rows(text, "### Failed") == [
        {
            "kernel": "`softmax`",
            "case": "`slow`",
            "arch": "`sm_90`",
            "GPU": "`NVIDIA H200`",
            "verdict": "regression",
            "time/launch": "38.8 us",
            "rate": "3459 GB/s",
            "limit": "72 %",
            "change": "+4.5 %",
            "why": "`slower`",
        }
    ]


def test_where_the_errors_of_wrong_results_are_each_kernel_once():
    errors = ErrorMap(
        matrix="output", shape=(34, 4), cell=(1, 1), rows=("...1", "0...", ".1..") + ("....",) * 31,
        scale=("1", "3"), unit="times the bound",
    )  # fmt: skip
    wrong = [
        untimed(
            "correct",
            verdict=Verdict.FAIL,
            reason=Reason.WRONG_VALUES,
            kernel=kernel,
            case=case,
            key=case,
            errors=errors,
        )
        for kernel, case in (("a", "c1"), ("a", "c2"), ("b", "c3"))
    ]
    text = markdown_summary(wrong, wrong)
    shown = text.partition("### Where errors are\n\n```\n")[2].partition("\n```")[0].split("\n\n")
    assert [one.splitlines()[0] for one in shown] == [
        f"{name}, sm_90: output, 34 x 4: times the bound, the most in each cell of 3 x 1"
        for name in ("a c2", "b c3")
    ]
    assert shown[0].splitlines()[1:] == ["01.1", *["...."] * 11, "0 from 1, 1 from 3"]


def test_samples_of_the_slowest_cases_are_bars_over_one_axis():
    block = SampleBlock(regime="burst", current_us=(44.0, 44.0, 43.0), baseline_us=(40.0, 40.1, math.nan))
    slow = result(**SLOWER, case="slow", measured=Measured(blocks=(block,)))
    text = markdown_summary([slow], [slow])
    shown = text.partition("### Samples of the slowest cases\n\n```\n")[2].partition("\n```")[0].splitlines()
    assert shown[0] == "softmax slow, sm_90: +4.5 %"
    (baseline, current) = (line[10:50] for line in shown[1:])
    assert (baseline.rstrip(), current.lstrip()) == ("██", "▄        █")
    assert [line[52:] for line in shown[1:]] == ["40.05 us", "44 us"]


def test_one_hostile_name_cannot_end_the_block_of_samples():
    block = SampleBlock(regime="burst", current_us=(44.0,), baseline_us=(40.0,))
    slow = result(**SLOWER, kernel="```\n<b>", measured=Measured(blocks=(block,)))
    text = markdown_summary([slow], [slow])
    assert [line for line in text.splitlines() if line.strip() == "```"] == ["```"] * 2


def test_a_gpu_that_passed_has_not_failed_with_another_one_of_its_architecture():
    slow = result(**SLOWER, gpu="NVIDIA H200")
    text = markdown_summary([slow, result(gpu="NVIDIA H100 80GB HBM3")], [slow])
    assert text.startswith("## cuTile kernels: 1 of 2 cases failed\n")
    assert [row["GPU"] for row in rows(text, "### Failed")] == ["`NVIDIA H200`"]


def test_sections_come_in_the_order_of_what_matters():
    by_case = {
        "slow": result(**SLOWER),
        "slower": result(**{**SLOWER, "change": 0.1}),
        "spills": untimed(
            "static", verdict=Verdict.REGRESSION, reason=Reason.WORSE_CODE, detail="spills: 0 -> 32 bytes"
        ),
        "broken": untimed(
            "compile",
            verdict=Verdict.FAIL,
            reason=Reason.COMPILE_ERROR,
            detail="kernels/mm.py:100: no such tile",
        ),
        "wrong": untimed(
            "correct", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES, detail="3 of 64 elements differ"
        ),
        "accepted": result(**SLOWER, recorded="accepted[c]: recorded"),
        "unsteady": result(verdict=Verdict.INCONCLUSIVE, reason=Reason.NOISY, detail="run it again"),
        "faster": result(verdict=Verdict.IMPROVEMENT, reason=Reason.FASTER, change=-0.08),
        "unseen": result(**NOT_MEASURED),
        "good": result(),
    }
    results = [msgspec.structs.replace(one, case=case, key=case) for case, one in by_case.items()]
    text = markdown_summary(results, results[:5])
    assert text.splitlines()[0] == (
        "## cuTile kernels: 5 of 10 cases failed, 1 accepted, 1 undecided, 1 improved, 1 not fully measured"
    )
    order = [
        "wrong",
        "broken",
        "spills",
        "slower",
        "slow",
        "accepted",
        "unsteady",
        "faster",
        "good",
        "unseen",
    ]
    assert re.findall(r"^\| `softmax` \| `(\w+)`", text, flags=re.MULTILINE) == order
    titles = re.findall(r"^### (.*)|^<details><summary>(.*)</summary>", text, flags=re.MULTILINE)
    assert ["".join(pair) for pair in titles] == [
        "Failed",
        "Slower or worse, but accepted or expected",
        "Inconclusive, or not compared",
        "Improved",
        "Not measured",
        "All other cases: 2",
    ]
    words = [row["verdict"] for row in rows(text, "### Failed")]
    assert words == [
        "wrong result",
        "does not compile",
        "regression (worse-code)",
        "regression",
        "regression",
    ]
    assert "\n- 1 speed: `no GPU: no NVIDIA driver`\n" in text


def test_what_strict_fails_is_listed_as_failed():
    new = result(verdict=Verdict.NO_BASELINE, reason=Reason.NO_ENTRY, detail="record it", change=None)
    assert rows(markdown_summary([new], [new]), "### Failed")[0]["verdict"] == "no-baseline"
    assert "### Failed" not in markdown_summary([new], [])


def test_a_case_that_does_not_compile_is_listed_once():
    broken = untimed("compile", verdict=Verdict.FAIL, reason=Reason.COMPILE_ERROR, detail="no such tile")
    unread = untimed("static", verdict=Verdict.NOT_MEASURED, reason=Reason.NOT_COMPILED)
    assert len(rows(markdown_summary([broken, unread], [broken, unread]), "### Failed")) == 1


def test_what_was_not_measured_is_counted_and_not_called_passed():
    text = markdown_summary([result(**{**NOT_MEASURED, "case": f"c{n}"}) for n in range(3)], [])
    assert text.startswith("## cuTile kernels: none of 3 cases failed, 3 not fully measured\n")
    assert "- 3 speed: `no GPU: no NVIDIA driver`" in text
    assert {row["verdict"] for row in rows(text, "All other cases: 3</summary>")} == {"not-measured"}


def test_what_no_result_says_is_said():
    text = markdown_summary([result()], [], other_failures=2, left_out=["k[c]"] * 7, unfinished=True)
    assert "**Failures that are no verdict on a kernel: 2.**" in text
    assert "Left out: 7 tests of cases" in text
    assert "**The run was stopped before its end.**" in text


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("a|b", r"`a\|b`"),
        ("one\ttwo\x1b[1m\x00three", r"`one two\x1b[1m\x00three`"),
        ("<b>&amp;</b> *x* @you", "`<b>&amp;</b> *x* @you`"),
        ("a `tile` here", "``a `tile` here``"),
        ("`tile`", "`` `tile` ``"),
        ("\ud800", r"`\ud800`"),
        ("x" * 500, f"`{'x' * 236} ...`"),
    ],
)
def test_texts_cannot_break_out_of_their_cell(text, cell):
    wrong = untimed("correct", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES, detail=text)
    [row] = rows(markdown_summary([wrong, result(case="other")], [wrong]), "### Failed")
    assert row.get("why", "") == cell


def test_a_name_with_a_newline_stays_in_its_cell():
    wrong = untimed("correct", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES, case="one\ntwo")
    assert rows(markdown_summary([wrong], [wrong]), "### Failed")[0]["case"] == "`one two`"


def test_a_long_name_loses_its_middle():
    wrong = untimed("correct", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES, case="a" * 100 + "-end")
    assert "aa..aa" in markdown_summary([wrong], [wrong])
    assert "-end`" in markdown_summary([wrong], [wrong])


def test_long_tables_are_folded_but_not_that_of_the_failures():
    slow = [result(**SLOWER, key=f"{n}", case=f"{n}") for n in range(30)]
    assert "<details>" not in markdown_summary(slow, slow)
    assert "<details><summary>Slower or worse, but accepted or expected: 30</summary>\n\n|" in (
        markdown_summary(slow, [])
    )


def test_it_stays_below_what_github_takes_and_says_what_it_cut():
    slow = [result(**SLOWER, key=f"{n}", case=f"{n}", detail="ü" * 300) for n in range(600)]
    good = [result(key=f"good{n}", case=f"good{n}") for n in range(10)]
    text = markdown_summary(slow + good, slow)
    assert SUMMARY_BYTES / 2 < len(text.encode()) <= SUMMARY_BYTES
    shown = len(rows(text, "### Failed"))
    assert f"\n\n{600 - shown} of 600 are left out here: the page would be too long." in text
    assert re.search(r"\n\n\d+ of 10 are left out here", text)
    assert text.count("<details>") == text.count("</details>")
