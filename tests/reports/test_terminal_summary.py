"""The summary that the terminal shows."""

from pytest_cutile.reports.cases import RunOutcome
from pytest_cutile.reports.terminal_summary import terminal_summary
from pytest_cutile.words.results import Measured, Result
from pytest_cutile.words.text import WIDTH, render_lines
from pytest_cutile.words.verdicts import Reason, Verdict


def result(gate="speed", **changes) -> Result:
    fields = {
        "key": "k",
        "kernel": "softmax",
        "case": "bf16-4096x8192",
        "arch": "sm_90",
        "verdict": Verdict.PASS,
        "reason": Reason.WITHIN_MARGIN,
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
    "reason": Reason.NO_GPU,
    "detail": "no GPU: no NVIDIA driver",
    "us_per_launch": None,
    "rate": None,
    "share_of_limit": None,
    "change": None,
}


def lines_of(*results: Result, verbose: bool = False) -> list[str]:
    """Return the lines of the summary that are not blank."""
    lines = render_lines(terminal_summary(RunOutcome(results=results), verbose=verbose).blocks)
    return [line.text for line in lines if line.text]


def test_nothing_gated_prints_nothing():
    assert lines_of() == []


def test_a_measured_case_has_a_row_with_every_figure():
    header, _, row = lines_of(result())
    assert header.split() == ["kernel", "case", "time/launch", "rate", "limit", "change", "verdict"]
    for figure in ("softmax", "bf16-4096x8192", "38.8 us", "3459 GB/s", "72 %", "+0.3 %", "pass"):
        assert figure in row


def test_the_only_architecture_is_in_the_title_and_several_are_in_the_table():
    assert terminal_summary(RunOutcome(results=(result(),))).title == "cuTile kernels for sm_90"
    both = (result(), result(arch="sm_121"))
    assert terminal_summary(RunOutcome(results=both)).title == "cuTile kernels"
    assert [line.split()[-2] for line in lines_of(*both)] == ["arch", "------", "sm_121", "sm_90"]


def test_a_sustained_rate_that_differs_has_a_column():
    header, _, row = lines_of(result(us_per_launch=40.0, sustained_us_per_launch=50.0))
    assert header.split()[3:5] == ["rate", "sustained"]
    assert row.split()[4:7] == ["3459", "GB/s", "2767"]


def test_outputs_of_fewer_bits_than_the_inputs_are_said_unasked():
    narrowed = ("output bfloat16, inputs float16",)
    checked = [result(gate="correct", case=case, reason=None, narrowed=narrowed) for case in ("a", "b")]
    said = "coarser than its inputs: softmax, a and 1 more: output bfloat16, inputs float16"
    assert said in lines_of(*checked)


def test_what_raised_or_did_not_compile_was_not_checked_by_interpretation():
    checked = result(gate="correct", case="a", on="interpreter")
    wrong = result(
        gate="correct", case="b", on="interpreter", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES
    )
    others = [
        result(gate="correct", case=reason, on="interpreter", verdict=Verdict.FAIL, reason=reason)
        for reason in (Reason.RAISED, Reason.COMPILE_ERROR)
    ]
    assert "correct was checked by interpretation on the CPU: 2 cases" in lines_of(checked, wrong, *others)


def test_unchanged_cases_say_how_the_gpu_does_today():
    unchanged = [
        result(key=f"k{change}", case=f"n{change}", reason=Reason.UNCHANGED, change=change)
        for change in (0.01, -0.02, 0.0)
    ]
    unmeasured = result(key="u", case="u", reason=Reason.UNCHANGED, us_per_launch=None, change=None)
    *_, line = lines_of(result(change=0.5), *unchanged, unmeasured)
    assert line == (
        "this GPU today, against stored times of 3 unchanged cases: +0.0 % in the median, -2.0 % to +1.0 %"
    )


def test_cases_that_nobody_could_measure_under_load_are_counted():
    unknown = [
        result(
            key=f"k{case}", case=case, measured=Measured(sustained_skipped="no NVML", sustained_unknown=True)
        )
        for case in ("a", "b")
    ]
    known = result(key="c", case="c", measured=Measured(sustained_skipped="not limited by power"))
    *_, line = lines_of(known, *unknown)
    assert line == "not measured under sustained load: 2 cases: no NVML"


def test_a_wrong_kernel_is_said_to_be_wrong_whatever_else():
    *_, row = lines_of(result(), result(gate="correct", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES))
    assert row.endswith("wrong result")


def test_not_measured_is_never_shown_as_passed():
    rows = lines_of(
        result(**NOT_MEASURED),
        result(**{**NOT_MEASURED, "gate": "correct"}),
        result(gate="compile", reason=None),
    )
    assert rows[0].split() == ["kernel", "cases", "right", "compiles"]
    assert rows[2].split() == ["softmax", "1", "1", "not", "measured", "1"]
    assert rows[-1] == "not measured: 1 correct, 1 speed: no GPU: no NVIDIA driver"


def test_without_a_time_a_kernel_has_one_row_unless_verbose():
    cases = [result(**{**NOT_MEASURED, "case": f"c{n}"}) for n in range(30)]
    assert [line.split() for line in lines_of(*cases)[2:3]] == [["softmax", "30"]]
    assert len(lines_of(*cases)) == 4
    assert len(lines_of(*cases, verbose=True)) == 33


def without_gpu(gate, case, **changes):
    return result(gate=gate, key=f"softmax[{case}]", case=case, reason=changes.pop("reason", None), **changes)


def test_the_short_table_counts_cases_not_inputs_and_says_what_changed():
    normal = without_gpu("correct", "a")
    tiny = without_gpu("correct", "a-tiny", inputs="tiny")
    wrong = without_gpu("correct", "b-nan", inputs="nan", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES)
    compiled = [without_gpu("compile", case) for case in "ab"]
    static = [
        without_gpu("static", "a", reason=Reason.UNCHANGED),
        without_gpu("static", "b", reason=Reason.WORSE_CODE, verdict=Verdict.REGRESSION),
    ]
    run = RunOutcome(
        results=(normal, tiny, without_gpu("correct", "b"), wrong, *compiled, *static),
        failed=(wrong, static[1]),
        seconds={"softmax": 3.21},
    )
    lines = [line.text for line in render_lines(terminal_summary(run).blocks) if line.text]
    assert lines[0].split() == ["kernel", "cases", "right", "compiles", "changed", "time"]
    assert lines[2].split() == ["softmax", "2", "1", "of", "2", "2", "1", "worse", "3.2", "s"]
    assert lines[5].split() == ["softmax", "b", "wrong", "result", "(nan", "inputs)"]
    assert len(lines) == 6


def test_code_that_differs_and_is_not_worse_is_counted():
    other = [without_gpu("static", case, reason=Reason.NOT_WORSE) for case in "ab"]
    lines = [line.text for line in render_lines(terminal_summary(RunOutcome(results=other)).blocks)]
    assert lines[-1] == "other code, not worse: 2 cases (-v shows what differs)"


def test_an_accepted_regression_is_no_failure():
    worse = without_gpu("static", "b", reason=Reason.WORSE_CODE, verdict=Verdict.REGRESSION)
    accepted = terminal_summary(RunOutcome(results=(worse,)))
    lines = [line.text.rstrip() for line in render_lines(accepted.blocks) if line.text]
    assert lines[2:] == ["softmax      1  1 worse, accepted"]


def test_what_this_run_recorded_first_is_recorded_and_not_without_a_baseline():
    none = {"verdict": Verdict.NO_BASELINE, "reason": Reason.NO_FILE}
    recorded = without_gpu("static", "a", recorded="compiled kernels recorded in FILE", **none)
    refused = without_gpu("static", "a", recorded="a: not recorded: unknown", **none)
    assert lines_of(recorded)[2].split()[:3] == ["softmax", "1", "recorded"]
    assert lines_of(refused)[2].split()[:4] == ["softmax", "1", "no", "baseline"]
    [row] = lines_of(result(recorded="recorded in FILE", **none))[2:3]
    assert row.endswith(" recorded")


def test_a_case_whose_inputs_raised_is_not_called_correct():
    raised = without_gpu("correct", "a", verdict=Verdict.FAIL, reason=Reason.RAISED)
    lines = lines_of(raised)
    assert lines[2].split() == ["softmax", "1", "0", "of", "1"]
    assert lines[5].endswith(" raised")
    assert "correct" not in "".join(lines)


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
    assert header.split() == ["kernel", "case", *figures, "verdict"]
    assert "0.25 J" in row
    assert row.endswith("pass")
