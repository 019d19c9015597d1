"""The comparison from its command line to the page, with a kernel on the CPU and a timer that believes it."""

import json
from pathlib import Path

import pytest
import torch

from pytest_cutile.tile.compiler import pretend_gpu
from tests.tools.toy_kernel import make_stream_timer, make_timer
from tools import compare_kernels, tune_kernels
from tools.comparison.goals import find_misses, is_memory_bound, rival
from tools.comparison.page import page, summary_text
from tools.gpu_runs.inputs import make_inputs
from tools.gpu_runs.suites import load_suite, suite_names
from tools.gpu_runs.tables import aligned, markdown

ROOT = Path(__file__).resolve().parents[2]
SUITE = "tests.tools.toy_suite"


@pytest.mark.slow
def test_a_run_measures_every_peer_and_says_what_is_wrong_with_some(tmp_path, capsys):
    file, written = tmp_path / "compared.json", tmp_path / "comparison.md"
    arguments = [
        SUITE,
        "--case",
        "64",
        "--json",
        str(file),
        "--markdown",
        str(written),
        "--without",
        "missed",
    ]
    timers = {"make_timer": make_timer, "make_stream_timer": make_stream_timer}
    assert compare_kernels.main(arguments, **timers) == 0
    text = capsys.readouterr().out
    (comparison,) = json.loads(file.read_text())["cases"]
    assert comparison["ours"]["us_per_launch"] == 120.0
    assert comparison["of_tilegym"]
    assert comparison["peers"]["tilegym"]["ratio"] == {"value": 1.25, "low": 1.25, "high": 1.25}
    assert comparison["peers"]["torch"]["differs"] is None
    assert comparison["peers"]["in_place"]["differs"] is None  # though it has been called before
    assert comparison["peers"]["other"]["differs"] == "output: 64 of 64 elements differ by more than 0.0039"
    assert comparison["missing"] == {
        "missed": "left out on the command line",
        "compile": "ModuleNotFoundError: No module named 'tilegym'",
        "unfit": "computes something else",
        "long": "TooLong: too long for a burst",
    }
    assert comparison["peers"]["eager"]["exceeded"]
    # The kernel multiplies, and is nearest to that limit; a copy of as many bytes does not.
    assert comparison["ours"]["bound"] == comparison["peers"]["torch"]["bound"] == "TFLOPS"
    assert comparison["peers"]["copy"]["bound"] == "GB/s"
    assert comparison["peers"]["copy"]["rate"] == pytest.approx(4 * 64 / 100.0 * 1e-3)
    assert "!!! IMPOSSIBLE: eager" in text
    assert "compile is missing: ModuleNotFoundError" in text
    assert "unfit is missing: computes something else" in text
    assert "other differs" in text
    # 180 + 10 beside 120 + 10.
    assert comparison["peers"]["uncaptured"]["on_stream"]
    assert round(comparison["peers"]["uncaptured"]["ratio"]["value"], 3) == 1.462
    assert "(on a stream)" in text

    again = tmp_path / "again.md"
    assert compare_kernels.main(["--from", str(file), "--markdown", str(again)]) == 0
    assert again.read_text() == written.read_text()
    assert "| `fp16-64` | 120.00 |" in written.read_text()
    assert "Above the chip's limits" in written.read_text()


def test_of_a_case_that_several_runs_have_the_newest_counts(tmp_path):
    files = []
    for day, us in (("2026-11-22T18:00", 2.0), ("2026-11-22", 3.0), ("2026-11-21", 4.0)):
        comparison = compared("softmax", tilegym=1.4) | {"ours": figures(us)}
        document = {"date": day, "environment": {"commit": day}, "cases": [comparison], "errors": {}}
        files.append(tmp_path / f"{us}.json")
        files[-1].write_text(json.dumps(document))
    written = tmp_path / "page.md"
    assert compare_kernels.main(["--from", *map(str, files), "--markdown", str(written)]) == 0
    text = written.read_text()
    assert "| `c` | 2.00 | 1 GB/s | 50 % | 140.0: 1.40 [1.38, 1.42] | 3 |" in text
    assert "3. 2026-11-22: commit 2026-11-22T18:00: softmax 1" in text


def test_the_page_is_made_of_the_data_that_are_there(tmp_path):
    """In the order of their names, which is that of time."""
    data = sorted(map(str, (ROOT / "research" / "data").glob("*-comparison-*.json")))
    written = tmp_path / "comparison.md"
    assert compare_kernels.main(["--from", *data, "--markdown", str(written)]) == 0
    text = (ROOT / "research" / "reports" / "comparison.md").read_text(encoding="utf-8")
    assert written.read_text(encoding="utf-8") == text
    assert "Not looked into" not in text


@pytest.mark.slow
def test_a_kernel_that_is_wrong_is_not_compared(tmp_path, capsys):
    file = tmp_path / "compared.json"
    arguments = ["tests.tools.wrong_suite", "--json", str(file), "--markdown", str(tmp_path / "page.md")]
    assert compare_kernels.main(arguments, make_timer=make_timer) == 1
    document = json.loads(file.read_text())
    assert document["cases"] == []
    assert "differs from its reference" in document["errors"]["tests.tools.wrong_suite[fp16-32]"]
    said = capsys.readouterr().out
    assert "FAILED" in said
    assert "Nothing was measured" in said
    assert "below the goals" not in said
    assert "tests.tools.wrong_suite[fp16-32]: KernelMismatch" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "No such file"), ("{", "Expecting"), ("[]", "not what --json writes")],
)
def test_a_file_that_cannot_be_read_is_named(text, said, tmp_path):
    file = tmp_path / "compared.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit, match=rf"--from .*compared.json: .*{said}"):
        compare_kernels.main(["--from", str(file)])


@pytest.mark.parametrize("ignored", [["matmul"], ["--case", "fp16"], ["--without", "torch"], ["--json", "f"]])
def test_what_chooses_measurements_has_no_place_beside_what_was_measured(ignored, capsys, tmp_path):
    file = tmp_path / "compared.json"
    file.write_text('{"date": "today", "environment": {}, "errors": {}, "cases": []}')
    with pytest.raises(SystemExit):
        compare_kernels.main([*ignored, "--from", str(file)])
    assert "--from measures nothing" in capsys.readouterr().err


def test_a_case_that_is_none_is_said_before_a_gpu_is_looked_for():
    for command in (compare_kernels, tune_kernels):
        with pytest.raises(SystemExit, match=r"^no case has 'nosuch' in its name among softmax$"):
            command.main(["softmax", "--case", "nosuch"])


def test_a_peer_that_is_none_is_refused(capsys):
    with pytest.raises(SystemExit):
        compare_kernels.main([SUITE, "--without", "torch, nosuch"])
    assert "--without: there is no nosuch; there are: tilegym, torch, eager," in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("name", suite_names())
def test_the_names_of_all_peers_are_declared(name, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    suite = load_suite(name)
    with pretend_gpu("sm_90"):
        for case in suite.cases:
            args = make_inputs(suite.spec, case, device="cuda", seed_text="any")
            assert set(suite.peers(args, dict(case.params))) <= set(suite.peer_names)
    without = {"moe_routing", "rms_norm_backward", "swiglu_backward"}
    assert "tilegym" in suite.peer_names or name in without


# -- goals ------------------------------------------------------------------------------------------


def figures(us, ratio=None, *, bound="GB/s", differs=None, exceeded=None):
    made = {"us_per_launch": us, "rate": 1.0, "share_of_peak": 0.5, "bound": bound, "exceeded": exceeded}
    if ratio is not None:
        made |= {"ratio": {"value": ratio, "low": ratio - 0.02, "high": ratio + 0.02}, "differs": differs}
    return made


def compared(kernel, case="c", *, dtype="float16", bound="GB/s", **ratios):
    return {
        "kernel": kernel,
        "suite": kernel,
        "case": case,
        "of_tilegym": case != "ours",
        "params": {"dtype": dtype},
        "work": {"bytes": 1e9, "flops": 0.0, "dtype": dtype},
        "ours": figures(100.0, bound=bound),
        "peers": {name: figures(100 * ratio, ratio) for name, ratio in ratios.items()},
        "missing": {},
        "problems": [],
        "l2_bytes": 60e6,
    }


def misses(*cases):
    return [(miss.what, miss.peer, miss.goal.least, miss.decided) for miss in find_misses(cases)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (compared("softmax", tilegym=1.4, torch=1.2, copy=0.9), []),
        (compared("softmax", tilegym=1.4, torch=0.98), [("softmax[c]", "torch", 1.0, False)]),
        (compared("matmul", tilegym=1.4, cublas=0.98), []),
        (compared("matmul", tilegym=1.4, cublas=0.9), [("matmul[c]", "cublas", 0.97, True)]),
        (compared("softmax", torch=1.2, compile=0.9), [("softmax[c]", "compile", 1.0, True)]),
        (compared("softmax", copy=0.8), [("softmax[c]", "copy", 0.85, True)]),
        (compared("matmul", copy=0.8, bound="TFLOPS"), []),
        (compared("fmha", tilegym=1.5), [("geometric mean of 1 cases", "tilegym", 1.6, True)]),
        (compared("fmha", tilegym=1.5, dtype="bfloat16"), []),
        (
            compared("matmul", tilegym=3.0, dtype="float8_e5m2"),
            [("geometric mean of 1 cases", "tilegym", 4.0, True)],
        ),
    ],
)
def test_goals(found, expected):
    assert misses(found) == expected


def test_a_mean_is_over_all_cases_of_a_goal():
    cases = [compared("softmax", "a", tilegym=1.1), compared("rope", "b", tilegym=1.2)]
    assert misses(*cases) == [("geometric mean of 2 cases", "tilegym", 1.3, True)]
    assert misses(*cases, compared("bmm", "c", tilegym=2.0)) == []


def test_a_mean_is_over_the_cases_of_tilegyms_benchmark_alone():
    assert misses(compared("rope", "a", tilegym=1.4), compared("rope", "ours", tilegym=1.0)) == []


def test_variants_of_tilegym_are_tilegym():
    comparison = compared("bmm", tilegym=1.4)
    comparison["peers"]["tilegym-not_persistent"] = figures(90.0, 0.9)
    assert misses(comparison)[0] == ("bmm[c]", "tilegym-not_persistent", 1.0, True)
    assert rival(comparison, "torch") is None


def test_a_copy_is_no_measure_for_what_stays_in_the_l2():
    small = compared("softmax", copy=0.5) | {"work": {"bytes": 1e8, "flops": 0.0}}
    assert not is_memory_bound(small)
    assert misses(small) == []


def test_a_peer_that_is_wrong_or_impossible_is_no_rival():
    comparison = compared("softmax", torch=1.2)
    comparison["peers"]["compile"] = figures(10.0, 0.1, differs="other")
    comparison["peers"]["flash"] = figures(10.0, 0.1, exceeded="9000 GB/s of at most 4800 GB/s")
    best = rival(comparison, "torch")
    assert best is not None
    assert best[0] == "torch"
    assert rival(comparison, "tilegym") is None


# -- the page ---------------------------------------------------------------------------------------


def test_the_last_of_several_runs_counts():
    runs = [
        {
            "date": "2026-01-01",
            "environment": {"gpu": "NVIDIA H200"},
            "cases": [compared("rope", tilegym=2.0)],
        }
        | {"errors": {"bmm[x]": "Broken: it\ndied", "rope[c]": "not then"}},
        {
            "date": "2026-01-02",
            "environment": {"gpu": "NVIDIA H200"},
            "cases": [compared("rope", tilegym=3.0)],
        }
        | {"errors": {}},
    ]
    text = page(runs)
    assert "3.00 [2.98, 3.02]" in text
    assert "2.00 [" not in text
    assert "- bmm[x]: Broken: it\n" in text
    assert "not then" not in text
    assert text.count("gpu NVIDIA H200") == 2


def test_nothing_below_the_goals_is_said():
    assert "Nothing that was measured is below the goals." in summary_text([compared("rope", tilegym=2.0)])
    assert "Nothing was measured." in summary_text([])


def test_columns_of_numbers_are_to_the_right():
    assert (
        aligned(("name", "us"), [("a|b", "9.5"), ("c", "10.25")])
        == "  name     us\n  a|b     9.5\n  c     10.25"
    )
    assert markdown(("name", "us"), [("a|b", "9.5")]).splitlines() == [
        "| name | us |",
        "| --- | ---: |",
        "| a\\|b | 9.5 |",
    ]


def test_what_was_not_measured_is_said():
    comparison = compared("rope", tilegym=2.0)
    runs = [{"date": "2026-01-01", "environment": {}, "errors": {}, "cases": [comparison]}]
    assert "Not compared yet" not in page(runs)
    known = [(comparison["suite"], comparison["case"]), ("softmax", "new"), ("softmax", "newer")]
    text = page(runs, everything=known)
    assert "## Not compared yet\n\n2 of 3 cases of tools/suite:\n\n- softmax: `new`, `newer`\n" in text


def test_what_is_below_a_goal_is_explained_or_said_not_to_be():
    cases = [compared("fmha", "fp16-4x32x1024x128", torch=0.9), compared("fmha", "unheard-of", torch=0.9)]
    text = page([{"date": "today", "environment": {}, "errors": {}, "cases": cases}])
    assert "- `fmha[fp16-4x32x1024x128]`: What a tile of queries costs" in text
    assert "- `fmha[unheard-of]`: Not looked into." in text


def test_a_wide_interval_excuses_no_more_than_one_percent():
    def reasons(ratio):
        (miss,) = find_misses([compared("softmax", torch=ratio)])
        return (miss.decided, miss.needs_reason)

    assert [reasons(ratio) for ratio in (0.995, 0.985, 0.9)] == [(False, False), (False, True), (True, True)]
