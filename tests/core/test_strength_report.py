"""The report of `--check-strength`."""

from pytest_cutile.core.results import GateResult
from pytest_cutile.core.strength import Matters, Outcome, Probe, Strength, never_caught
from pytest_cutile.core.strength_report import strength_report


def probe(alteration="all zero", outcome=Outcome.CAUGHT, **options):
    return Probe(alteration=alteration, where=options.pop("where", "output"), outcome=outcome, **options)


def result(case, *probes, kernel="softmax", left_out=0):
    strength = Strength(probes=probes, left_out=left_out).to_dict()
    options = {"key": f"{kernel}[{case}]", "kernel": kernel, "case": case}
    return GateResult(gate="correct", arch="sm_90", verdict="pass", strength=strength, **options)


def texts(*results, verbose=False):
    lines = [line.text for line in strength_report(results, verbose=verbose)]
    assert all(len(line) <= 100 for line in lines)
    return lines


EQUAL = probe("two indices exchanged", Outcome.UNCHANGED, where="output, dim 1", detail="all are the same")
TRUNCATED = probe("truncated", Outcome.MISSED, detail="within the bound, the largest error 0.4 of it")


def test_nothing_without_strengths():
    plain = GateResult(gate="correct", key="k", kernel="k", case="c", arch="sm_90", verdict="pass")
    assert texts(plain) == []


def test_weak_cases_come_first_with_their_reasons():
    lines = texts(
        result("a", probe(), TRUNCATED),
        result("b", probe(), TRUNCATED, EQUAL),
        result("c", probe()),
        result("d", probe(), kernel="rope"),
    )
    assert lines[0] == "2 of 4 cases are weak: these alterations would have passed"
    assert lines[1] == "softmax: 2 weak cases"
    assert lines[2] == (
        "    truncated (output): within the bound, the largest error 0.4 of it (2 cases, such as a)"
    )
    assert lines[3] == "    two indices exchanged (output, dim 1): all are the same (b)"
    assert lines[6:8] == ["rope     1 case    1 of 1", "softmax  1 case    1 of 1"]
    assert "softmax: no case catches truncated, two indices exchanged" in lines
    assert lines[-3:] == [
        "all zero                    4",
        "truncated                           2",
        "two indices exchanged                                1",
    ]


def test_every_case_with_verbose():
    lines = texts(result("a", probe(), TRUNCATED), result("b", TRUNCATED), result("c", probe()), verbose=True)
    assert [line for line in lines if line.startswith("    truncated")] == [
        f"    truncated (output): within the bound, the largest error 0.4 of it ({case})" for case in "ab"
    ]
    assert any(line.startswith("softmax  c") for line in lines)


def test_what_was_left_out_is_said():
    assert texts(result("a", probe(), left_out=3))[-1].startswith("3 alterations of inputs were left out")


def test_a_kernel_needs_one_case_that_catches_each():
    missed = probe("truncated", Outcome.MISSED)
    unused = probe("ignored", Outcome.UNCHANGED, where="x, dim 0", of_input=True, matters=Matters.KERNEL)
    used = probe("ignored", where="y, dim 0", of_input=True)
    allowed = probe("rounded", Outcome.MISSED, matters=Matters.NOT)
    cases = [Strength(probes=(missed, unused, used, allowed)), Strength(probes=(probe("truncated"),))]
    assert never_caught(cases) == [unused]
    assert never_caught(cases[:1]) == [missed, unused]


def test_the_strength_travels_as_json():
    [properties] = [
        value for name, value in result("a", TRUNCATED).to_properties() if name == "cutile.correct.strength"
    ]
    assert '"alteration": "truncated"' in properties
    assert GateResult.from_dict(result("a", TRUNCATED).to_dict()) == result("a", TRUNCATED)
