import math

import pytest

from pytest_cutile import Block, Device, Measurement, Regime, Skipped, Sustained, Timer, Work
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.timing import bound_of

H200 = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1", max_sm_clock_mhz=1980.0)
THIN = Work(bytes=1.34e8)
DENSE = Work(flops=2 * 4096**3, bytes=1e8, dtype="float16")


def measured(*blocks_us, work: Work = THIN, device: Device = H200, sustained_us=()) -> Measurement:
    return Measurement(
        device=device,
        burst=tuple(Block(current_us=tuple(samples)) for samples in blocks_us),
        sustained=Sustained(blocks=(Block(current_us=tuple(sustained_us)),)) if sustained_us else None,
        work=work,
        platform=find_platform(device.name),
    )


def paired(*pairs) -> Measurement:
    blocks = tuple(Block(current_us=tuple(a), baseline_us=tuple(b)) for a, b in pairs)
    return Measurement(device=H200, burst=blocks, work=THIN)


# -- times --------------------------------------------------------------------------------------------


def test_the_time_is_the_trimmed_mean_over_placements():
    measurement = measured([30.0], [40.0, 42.0], [42.0], [43.0], [90.0])
    assert measurement.burst_us == pytest.approx(42.0)
    assert measurement.samples_us == (30.0, 40.0, 42.0, 42.0, 43.0, 90.0)


def test_what_few_placements_show_counts_in_full():
    assert measured([40.0], [44.0], [48.0]).burst_us == pytest.approx(44.0)


def test_a_kernel_that_is_slow_at_some_placements_is_slower():
    pair = [([40.0], [40.0])] * 5 + [([44.0], [40.0])] * 3
    assert paired(*pair).log_ratio(Regime.BURST) == pytest.approx(2 / 6 * math.log(1.1))


def test_a_launch_three_times_slower_in_one_of_five_shows():
    block = Block(current_us=(40.0, 40.0, 40.0, 40.0, 120.0), baseline_us=(40.0,) * 5)
    assert block.log_ratio == pytest.approx(math.log(1.4))


def test_without_a_baseline_there_is_no_ratio():
    assert Block(current_us=(40.0,)).log_ratio is None
    measurement = measured([40.0], [41.0])
    assert measurement.log_ratio(Regime.BURST) is None
    assert measurement.standard_error(Regime.BURST) is None
    assert measurement.baseline_us(Regime.BURST) is None


def test_the_standard_error_is_that_of_the_placements():
    measurement = paired(([math.e], [1.0]), ([math.e**3], [1.0]))
    assert measurement.log_ratio(Regime.BURST) == pytest.approx(2.0)
    assert measurement.standard_error(Regime.BURST) == pytest.approx(1.0)
    assert paired(([40.0], [41.0])).standard_error(Regime.BURST) is None


def test_one_slow_placement_of_eight_shows_in_the_standard_error():
    """It is trimmed away from the mean."""
    slow = paired(([120.0], [40.0]), *[([40.0], [40.0])] * 7)
    assert slow.log_ratio(Regime.BURST) == 0
    assert slow.standard_error(Regime.BURST) == pytest.approx(math.log(3) / 8)


def test_a_single_block_shows_its_error_by_repeated_segments():
    steady, swinging = (
        Measurement(
            device=H200,
            work=THIN,
            sustained=Sustained(blocks=(Block(current_us=current, baseline_us=(100.0,)),)),
        )
        for current in ((100.0, 100.0), (99.0, 101.0))
    )
    assert steady.standard_error(Regime.SUSTAINED) == 0.0
    deviation = math.log(101 / 99) / math.sqrt(2)
    assert swinging.standard_error(Regime.SUSTAINED) == pytest.approx(deviation * math.sqrt(1.5))


def test_regimes_are_apart():
    measurement = measured([40.0], sustained_us=(50.0, 52.0))
    assert measurement.regimes == (Regime.BURST, Regime.SUSTAINED)
    assert (measurement.burst_us, measurement.sustained_us) == (40.0, 51.0)
    assert measurement.headline_us == measurement.fastest_us == 40.0
    assert measurement.samples_us == (40.0,)


def test_a_launch_too_long_for_a_burst_is_judged_sustained():
    measurement = measured(sustained_us=(6000.0, 6100.0))
    assert measurement.regimes == (Regime.SUSTAINED,)
    assert measurement.burst_us is None
    assert measurement.headline_us == 6050.0
    assert measurement.samples_us == (6000.0, 6100.0)
    assert measurement.placement_spread == 0.0


def test_the_spread_is_that_of_all_samples():
    assert measured([40.0] * 4, [40.0] * 4).spread == 0.0
    assert measured([42.0, 80.0], [50.0, 60.0]).spread > 0.1


@pytest.mark.parametrize(
    ("blocks", "spread"),
    [([[40.0]], 0.0), ([[40.0], [40.0]], 0.0), ([[42.0], [40.0], [41.0]], 0.05)],
)
def test_placements_spread_by_the_slowest_over_the_fastest(blocks, spread):
    assert measured(*blocks).placement_spread == pytest.approx(spread)


# -- rates --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "gpu", "bound"),
    [
        (DENSE, "NVIDIA H200", "TFLOPS"),
        (Work(flops=1e6, bytes=8e8, dtype="float16"), "NVIDIA H200", "GB/s"),
        (Work(flops=1e6, bytes=8e8, dtype="int32"), "NVIDIA H200", "TFLOPS"),  # no published limit
        (Work(flops=1e6, bytes=8e8), "NVIDIA H999", "TFLOPS"),
        (THIN, "NVIDIA H200", "GB/s"),
        (Work(flops=1e6), "NVIDIA H200", "TFLOPS"),
        (Work(), "NVIDIA H200", "GB/s"),
    ],
)
def test_work_is_compared_with_the_nearer_limit(work, gpu, bound):
    assert bound_of(work, find_platform(gpu)) == bound


@pytest.mark.parametrize(
    ("us", "work", "exceeded"),
    [
        (27.0, THIN, "4963 GB/s of at most 4800 GB/s"),
        (120.0, DENSE, "1145 TFLOPS of at most 1070 TFLOPS"),
        (136.0, DENSE, None),  # above the rate at 1830 MHz, below at 1980
        (180.0, DENSE, None),
        (1.0, Work(flops=2 * 4096**3, dtype="int32"), None),  # no published limit
        (1.0, Work(), None),
    ],
)
def test_a_figure_above_the_chips_limit_is_seen(us, work, exceeded):
    assert measured([us], [us] * 5, work=work).exceeded == exceeded
    assert measured([us * 2], sustained_us=(us, us), work=work).exceeded == exceeded


def test_an_unknown_gpu_has_no_share():
    unknown = measured([27.0], device=Device(arch="sm_90", name="NVIDIA H999"))
    assert unknown.share_of_limit is None
    assert unknown.exceeded is None
    assert unknown.rate == pytest.approx(4963, rel=1e-3)


def test_rate_and_share_are_those_of_the_nearer_limit():
    dense = measured([200.0], work=DENSE)
    assert dense.rate == dense.tflops == pytest.approx(687.2, rel=1e-3)
    assert dense.rate_at(400.0) == pytest.approx(343.6, rel=1e-3)
    assert dense.share_of_limit == pytest.approx(687.2 / 989.5, rel=1e-2)
    thin = measured([200.0], work=Work(flops=1e6, bytes=8e8, dtype="float16"))
    assert thin.rate == thin.gb_per_s == pytest.approx(4000)
    assert thin.share_of_limit == pytest.approx(4000 / 4800)


def test_work_that_counts_nothing_has_no_rate():
    nothing = measured([40.0], work=Work())
    assert (nothing.tflops, nothing.gb_per_s, nothing.rate) == (None, None, None)


# -- timers -------------------------------------------------------------------------------------------


def test_a_timer_needs_only_a_device_and_times():
    class Fixed(Timer):
        device = H200

        def time_block(self, launches):
            return [[40.0] for _ in launches]

    timer = Fixed()
    assert timer.reference_workload("TFLOPS") is None
    assert (timer.environment(), timer.problems(), timer.sm_clock_mhz()) == ({}, (), None)
    assert timer.time_block([len, len]) == [[40.0], [40.0]]
    assert timer.time_sustained([[int]]) == Skipped(reason="the timer measures bursts only")
    assert timer.tick_us == 0.0
