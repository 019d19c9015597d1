"""The report of `--mutation-test`."""

from pytest_cutile.correctness.mutation.report import Mutant, MutationReport, Outcome, Weakness, never_killed
from pytest_cutile.reports.mutation import mutation_document
from pytest_cutile.words.results import CorrectResult, Result
from pytest_cutile.words.text import render_lines
from pytest_cutile.words.verdicts import Verdict


def mutant(mutation="all zero", outcome=Outcome.KILLED, **options):
    return Mutant(mutation=mutation, where=options.pop("where", "output"), outcome=outcome, **options)


def result(case, *mutants, kernel="softmax", skipped=0):
    report = MutationReport(mutants=mutants, skipped=skipped).to_dict()
    options = {"key": f"{kernel}[{case}]", "kernel": kernel, "case": case}
    return CorrectResult(arch="sm_90", verdict=Verdict.PASS, mutation=report, **options)


def texts(*results, verbose=False):
    document = mutation_document(results, verbose=verbose)
    lines = [line.text for line in render_lines(document.blocks) if line.text]
    assert all(len(line) <= 100 for line in lines)
    return lines


EQUAL = mutant("two indices exchanged", Outcome.EQUIVALENT, where="output, dim 1", detail="all are the same")
TRUNCATED = mutant("truncated", Outcome.SURVIVED, detail="within the bound, the largest error 0.4 of it")


def test_nothing_without_reports():
    plain = CorrectResult(key="k", kernel="k", case="c", arch="sm_90", verdict=Verdict.PASS)
    assert texts(plain) == []


def test_weak_cases_come_first_with_their_reasons():
    lines = texts(
        result("a", mutant(), TRUNCATED),
        result("b", mutant(), TRUNCATED, EQUAL),
        result("c", mutant()),
        result("d", mutant(), kernel="rope"),
    )
    assert lines[0] == "2 of 4 cases are weak: these mutants would have survived"
    assert lines[1] == "softmax: 2 weak cases"
    assert lines[2] == (
        "  truncated (output): within the bound, the largest error 0.4 of it (2 cases, such as a)"
    )
    assert lines[3] == "  two indices exchanged (output, dim 1): all are the same (b)"
    assert lines[6:8] == ["rope     1 case    1 of 1", "softmax  1 case    1 of 1"]
    assert "softmax: no case kills truncated, two indices exchanged" in lines
    assert lines[-3:] == [
        "all zero                    4",
        "truncated                             2",
        "two indices exchanged                             1",
    ]


def test_every_case_with_verbose():
    lines = texts(
        result("a", mutant(), TRUNCATED), result("b", TRUNCATED), result("c", mutant()), verbose=True
    )
    assert [line for line in lines if line.startswith("  truncated")] == [
        f"  truncated (output): within the bound, the largest error 0.4 of it ({case})" for case in "ab"
    ]
    assert any(line.startswith("softmax  c") for line in lines)


def test_what_was_left_out_is_said():
    assert texts(result("a", mutant(), skipped=3))[-1].startswith("3 mutants of inputs were skipped")


def test_a_kernel_needs_one_case_that_catches_each():
    missed = mutant("truncated", Outcome.SURVIVED)
    unused = mutant("ignored", Outcome.EQUIVALENT, where="x, dim 0", of_input=True, weakness=Weakness.KERNEL)
    used = mutant("ignored", where="y, dim 0", of_input=True)
    allowed = mutant("rounded", Outcome.SURVIVED, weakness=Weakness.NONE)
    cases = [
        MutationReport(mutants=(missed, unused, used, allowed)),
        MutationReport(mutants=(mutant("truncated"),)),
    ]
    assert never_killed(cases) == [unused]
    assert never_killed(cases[:1]) == [missed, unused]


def test_the_report_travels_as_json():
    [properties] = [
        value for name, value in result("a", TRUNCATED).to_properties() if name == "cutile.correct.mutation"
    ]
    assert '"mutation": "truncated"' in properties
    assert Result.from_builtins(result("a", TRUNCATED).to_builtins()) == result("a", TRUNCATED)
