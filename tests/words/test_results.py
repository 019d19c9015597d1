"""What travels with a report."""

import json

import msgspec
import pytest

from pytest_cutile.words.results import CompileResult, CorrectResult, Result, StaticResult, names_of_test
from pytest_cutile.words.verdicts import Reason, Verdict


@pytest.mark.parametrize(
    ("nodeid", "names"),
    [
        ("a/test_p.py::test_x", ("test_p", "test_x")),
        ("a/test_p.py::TestIt::test_x[a::b]#again", ("test_p", "test_x[a::b]#again")),
        ("test_p.py::test_x#again", ("test_p", "test_x#again")),
    ],
)
def test_a_test_function_is_named_by_its_file_and_itself(nodeid, names):
    assert names_of_test(nodeid) == names


class EnergyResult(Result, frozen=True, kw_only=True, tag="energy"):
    joules: float


def test_a_result_of_each_defined_type_travels():
    result = EnergyResult(key="k", kernel="k", case="c", arch="sm_90", verdict=Verdict.PASS, joules=0.25)
    assert Result.from_builtins(json.loads(json.dumps(result.to_builtins()))) == result
    assert ("cutile.energy.joules", "0.25") in result.to_properties()


def test_cases_that_differ_in_predicted_times_alone_have_one_cause():
    def cause(*changes: str) -> tuple[str, ...]:
        verdict = Verdict.REGRESSION
        return StaticResult(
            key="k", kernel="k", case="c", arch="sm_90", verdict=verdict, changes=changes
        ).cause

    spills = "worse: spills, in bytes per thread: 0 -> 64"
    predicted = "worse: predicted 2.5x slower: memory: 2 us -> 5 us"
    assert cause(predicted, spills, "different: grid: (4, 3) -> (1, 1)") == cause(spills)
    assert cause("worse: TMA loads: UTMALDG -> none") != cause(spills)


def test_what_does_not_fit_its_type_is_rejected():
    data = {"gate": "energy", "key": "k", "kernel": "k", "case": "c", "arch": "sm_90", "verdict": "splendid"}
    with pytest.raises(msgspec.ValidationError, match="splendid"):
        Result.from_builtins({**data, "joules": 1.0})
    with pytest.raises(msgspec.ValidationError, match="'smell'"):
        Result.from_builtins({**data, "gate": "smell"})


def test_a_junit_property_is_written_for_each_field_that_says_something():
    result = StaticResult(
        key="k", kernel="k", case="c", arch="sm_90", verdict=Verdict.PASS, changes=("a", "b"), facts={"x": 1}
    )
    names = {"key": "k", "kernel": "k", "case": "c", "arch": "sm_90", "verdict": "pass", "changes": "a; b"}
    assert result.to_properties() == [(f"cutile.static.{name}", text) for name, text in names.items()]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (CorrectResult, Reason.RAISED),
        (CorrectResult, Reason.COMPILE_ERROR),
        (CompileResult, Reason.RAISED),
        (CompileResult, Reason.COMPILE_ERROR),
    ],
)
def test_messages_that_differ_in_sizes_have_one_cause(kind, reason):
    def cause(detail: str) -> tuple[str, ...]:
        failed: Result = kind(
            key="k", kernel="k", case="c", arch="sm_90", verdict=Verdict.FAIL, reason=reason, detail=detail
        )
        return failed.cause

    assert cause("got [3, 17] for sm_90") == cause("got [128, 1] for sm_121") != cause("got none")
