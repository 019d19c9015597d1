"""The summary that the terminal shows."""

from pytest_cutile.reports.cases import RunOutcome
from pytest_cutile.reports.summary import summary
from pytest_cutile.reports.text import WIDTH, render_lines
from pytest_cutile.results import Result
from pytest_cutile.verdicts import Verdict


def result(gate="speed", **changes) -> Result:
    fields = {
        "key": "k",
        "kernel": "softmax",
        "case": "bf16-4096x8192",
        "arch": "sm_90",
        "verdict": Verdict.PASS,
        "reason": "within-margin",
        "us_per_launch": 38.8,
        "rate": 3459.0,
        "unit": "GB/s",
        "share_of_limit": 0.72,
        "change": 0.003,
    }
    of_gate = next(result for result in Result.__subclasses__() if result.__struct_config__.tag == gate)
    known = {*of_gate.__struct_fields__, *(name for name, value in changes.items() if value is not None)}
    return of_gate(**{name: value for name, value in {**fields, **changes}.items() if name in known})


NOT_MEASURED = {
    "verdict": Verdict.NOT_MEASURED,
    "reason": "no-gpu",
    "detail": "no GPU: no NVIDIA driver",
    "us_per_launch": None,
    "rate": None,
    "share_of_limit": None,
    "change": None,
}


def lines_of(*results: Result, verbose: bool = False) -> list[str]:
    """Return the lines of the summary that are not blank."""
    lines = render_lines(summary(RunOutcome(results=results), verbose=verbose).blocks)
    return [line.text for line in lines if line.text]


def test_nothing_gated_prints_nothing():
    assert lines_of() == []


def test_a_measured_case_has_a_row_with_every_figure():
    header, _, row = lines_of(result())
    assert header.split() == ["kernel", "case", "arch", "time/launch", "rate", "limit", "change", "verdict"]
    for figure in ("softmax", "bf16-4096x8192", "sm_90", "38.8 us", "3459 GB/s", "72 %", "+0.3 %", "pass"):
        assert figure in row


def test_what_raised_or_did_not_compile_was_not_checked_by_interpretation():
    checked = result(gate="correct", case="a", on="interpreter")
    wrong = result(gate="correct", case="b", on="interpreter", verdict=Verdict.FAIL, reason="")
    others = [
        result(gate="correct", case=reason, on="interpreter", verdict=Verdict.FAIL, reason=reason)
        for reason in ("raised", "not-compiled")
    ]
    assert "correct was checked by interpretation on the CPU: 2 cases" in lines_of(checked, wrong, *others)


def test_unchanged_cases_say_how_the_gpu_does_today():
    unchanged = [
        result(key=f"k{change}", case=f"n{change}", reason="unchanged", change=change)
        for change in (0.01, -0.02, 0.0)
    ]
    unmeasured = result(key="u", case="u", reason="unchanged", us_per_launch=None, change=None)
    *_, line = lines_of(result(change=0.5), *unchanged, unmeasured)
    assert line == (
        "this GPU today, against stored times of 3 unchanged cases: +0.0 % in the median, -2.0 % to +1.0 %"
    )


def test_a_wrong_kernel_is_said_to_be_wrong_whatever_else():
    *_, row = lines_of(result(), result(gate="correct", verdict=Verdict.FAIL))
    assert row.endswith("wrong result")


def test_not_measured_is_never_shown_as_passed():
    rows = lines_of(
        result(**NOT_MEASURED),
        result(**{**NOT_MEASURED, "gate": "correct"}),
        result(gate="compile", reason=""),
    )
    assert "compiles, not-measured" in rows[2]
    assert rows[-1] == "not measured: 1 correct, 1 speed: no GPU: no NVIDIA driver"


def test_quiet_rows_are_joined_unless_verbose():
    cases = [result(**{**NOT_MEASURED, "case": f"c{n}"}) for n in range(30)]
    assert any("30 cases" in line for line in lines_of(*cases))
    assert len(lines_of(*cases)) == 4
    assert len(lines_of(*cases, verbose=True)) == 33


def test_the_table_fits_into_a_hundred_columns():
    long = result(
        kernel="a_kernel_with_a_long_name", case="test_function_with_a_very_long_name[with-many-parameters-x]"
    )
    assert max(len(line) for line in lines_of(long, result())) <= WIDTH
    assert all(line.rstrip().endswith("pass") for line in lines_of(long, result())[2:])


class EnergyResult(Result, frozen=True, kw_only=True, tag="energy-in-summary"):
    joules: float

    @property
    def figures(self):
        return {"energy": f"{self.joules:.2g} J"}


def test_a_result_type_of_a_new_gate_brings_its_own_column():
    measured = result()
    names = {name: getattr(measured, name) for name in ("key", "kernel", "case", "arch")}
    header, _, row = lines_of(EnergyResult(**names, verdict=Verdict.PASS, joules=0.25), measured)
    figures = ["time/launch", "rate", "limit", "change", "energy"]
    assert header.split() == ["kernel", "case", "arch", *figures, "verdict"]
    assert "0.25 J" in row
    assert row.endswith("pass")
