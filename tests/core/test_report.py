import pytest

from pytest_cutile import Device, Measurement, Work
from pytest_cutile.core.platforms import find_platform
from pytest_cutile.core.report import WIDTH, above_limit_message, format_time, regression_message, summary
from pytest_cutile.core.results import GateResult
from pytest_cutile.core.verdicts import Judgement, Reason, Rule, Verdict
from tests.core.test_baselines import ENVIRONMENT, entry

H200 = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1", max_sm_clock_mhz=1980.0)


def measurement(us: float, work: Work, device: Device = H200) -> Measurement:
    return Measurement(device=device, samples_us=(us,) * 5, work=work, platform=find_platform(device.name))


def message(**changes) -> str:
    work = Work(bytes=1.34e8)
    fields = {
        "key": "softmax[bf16-4096x8192]",
        "nodeid": "kernels/softmax.py::speed[bf16-4096x8192]",
        "measurement": measurement(42.4, work),
        "medians_us": [42.4, 42.3, 42.5],
        "judgement": Judgement(reason=Reason.SLOWER, change=0.06),
        "entry": entry(40.0),
        "environment": ENVIRONMENT,
        "baseline_file": "baselines/sm_90-nvidia-h200.json",
        "rule": Rule(),
        "fresh_inputs": True,
    }
    return regression_message(**{**fields, **changes})


def test_a_regression_says_everything_that_is_needed():
    text = message()
    assert "6.0% slower than its baseline" in text
    assert "42.4 us" in text
    assert "40 us" in text
    assert "+6.0 %" in text
    assert "-5.7 %" in text  # GB/s
    assert "3160" in text
    assert "3350" in text
    assert "±0.40%" in text
    assert "environment unchanged" in text
    assert "baselines/sm_90-nvidia-h200.json (1 run, last 2026-11-21)" in text
    assert "measured    3 times: 42.4, 42.3, 42.5 us per launch (new buffers each time)" in text
    assert "pytest 'kernels/softmax.py::speed[bf16-4096x8192]' --arch sm_90 \\\n" in text
    assert "--update-baselines --reason 'why it is slower'" in text


def test_a_regression_names_what_differs_in_the_environment():
    other = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-2")
    text = message(
        environment={**ENVIRONMENT, "driver": "590.2"}, measurement=measurement(42.4, Work(), other)
    )
    assert "driver: 580.1 -> 590.2" in text
    assert "another board of the same kind" in text


def test_messages_fit_into_a_hundred_columns():
    assert max(len(line) for line in message().splitlines()) <= WIDTH


@pytest.mark.parametrize(
    ("us", "work", "exceeded"),
    [
        (27.0, Work(bytes=1.34e8), "4963 GB/s of at most 4800 GB/s"),
        (120.0, Work(flops=2 * 4096**3, dtype="float16"), "1145 TFLOPS of at most 1070 TFLOPS"),
        (136.0, Work(flops=2 * 4096**3, dtype="float16"), None),  # above the rate at 1830 MHz, below at 1980
        (180.0, Work(flops=2 * 4096**3, dtype="float16"), None),
        (1.0, Work(flops=2 * 4096**3, dtype="int32"), None),  # no published limit
    ],
)
def test_a_figure_above_the_chips_limit_is_seen(us, work, exceeded):
    assert measurement(us, work).exceeded == exceeded


def test_the_message_for_an_impossible_figure_names_figures_and_source():
    text = above_limit_message("k[c]", measurement(27.0, Work(bytes=1.34e8)))
    assert "k[c]: 4963 GB/s of at most 4800 GB/s is above what NVIDIA H200 can do" in text
    assert "http" in text


def test_an_unknown_gpu_has_no_share():
    unknown = measurement(27.0, Work(bytes=1.34e8), Device(arch="sm_90", name="NVIDIA H999"))
    assert unknown.share_of_limit is None
    assert unknown.exceeded is None
    assert unknown.rate == pytest.approx(4963, rel=1e-3)


def test_the_nearer_limit_is_shown():
    both = measurement(200.0, Work(flops=2 * 4096**3, bytes=1e8, dtype="float16"))
    assert both.bound == "TFLOPS"
    assert both.rate == pytest.approx(687.2, rel=1e-3)
    thin = measurement(200.0, Work(flops=1e6, bytes=8e8, dtype="float16"))
    assert thin.bound == "GB/s"


def test_times_keep_their_unit():
    assert format_time(38.806) == "38.81 us"
    assert format_time(1203.4) == "1.203 ms"


def result(**changes) -> GateResult:
    fields = {
        "gate": "speed",
        "key": "k",
        "kernel": "softmax",
        "case": "bf16-4096x8192",
        "arch": "sm_90",
        "verdict": "pass",
        "reason": "within-margin",
        "median_us": 38.8,
        "rate": 3459.0,
        "unit": "GB/s",
        "share_of_limit": 0.72,
        "change": 0.003,
    }
    return GateResult(**{**fields, **changes})


NOT_MEASURED = {
    "verdict": Verdict.NOT_MEASURED,
    "reason": "no-gpu",
    "detail": "no GPU: no NVIDIA driver",
    "median_us": None,
    "rate": None,
    "share_of_limit": None,
    "change": None,
}


def lines_of(*results: GateResult, verbose: bool = False) -> list[str]:
    return [line.text for line in summary(results, verbose=verbose)]


def test_nothing_gated_prints_nothing():
    assert summary([]) == []


def test_a_measured_case_has_a_row_with_every_figure():
    header, _, row = lines_of(result())
    assert header.split() == ["kernel", "case", "arch", "time/launch", "rate", "limit", "change", "verdict"]
    for figure in ("softmax", "bf16-4096x8192", "sm_90", "38.8 us", "3459 GB/s", "72 %", "+0.3 %", "pass"):
        assert figure in row


def test_a_wrong_kernel_is_said_to_be_wrong_whatever_else():
    *_, row = lines_of(result(), result(gate="correct", verdict="fail", median_us=None))
    assert row.endswith("wrong result")


def test_not_measured_is_never_shown_as_passed():
    rows = lines_of(
        result(**NOT_MEASURED),
        result(**{**NOT_MEASURED, "gate": "correct"}),
        result(gate="compile", median_us=None, rate=None, share_of_limit=None, change=None, reason=""),
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
