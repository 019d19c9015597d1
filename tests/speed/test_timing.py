import math

import pytest

from pytest_cutile import Block, Device, Measurement, Timer, Work
from pytest_cutile.platforms.lookup import find_platform
from pytest_cutile.speed.measure.timing import bound_of

H200 = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1", max_sm_clock_mhz=1980.0)
THIN = Work(bytes=1.34e8)
DENSE = Work(flops=2 * 4096**3, bytes=1e8, dtype="float16")


def measured(*blocks_us, work: Work = THIN, device: Device = H200) -> Measurement:
    blocks = tuple(Block(samples_us=tuple(samples)) for samples in blocks_us)
    return Measurement(device=device, blocks=blocks, work=work, platform=find_platform(device.name))


def test_the_time_is_the_median_of_the_fastest_block():
    measurement = measured([44.0, 41.0, 42.0], [40.0, 40.5, 90.0], [39.0, 43.0, 43.5])
    assert measurement.median_us == 40.5  # neither the smallest sample nor the median of all
    assert measurement.best is measurement.blocks[1]
    assert len(measurement.samples_us) == 9


def test_the_spread_is_that_of_the_fastest_block():
    quiet, wild = [40.0, 40.0, 40.0, 40.0], [42.0, 80.0, 50.0, 60.0]
    assert measured(wild, quiet).relative_spread == 0.0
    assert measured(wild).relative_spread > 0.1


@pytest.mark.parametrize(
    ("blocks", "spread"),
    [([[40.0]], 0.0), ([[40.0], [40.0]], 0.0), ([[42.0], [40.0], [41.0]], 0.05)],
)
def test_placements_spread_by_the_slowest_over_the_fastest(blocks, spread):
    assert measured(*blocks).placement_spread == pytest.approx(spread)


def test_a_block_is_compared_with_what_was_interleaved_by_medians():
    block = Block(samples_us=(39.0, 40.0, 90.0), interleaved_us=(19.0, 20.0, 20.5))
    assert block.interleaved_median_us == 20.0
    assert block.log_ratio == pytest.approx(math.log(2))


def test_a_block_with_nothing_interleaved_stands_for_its_time():
    block = Block(samples_us=(39.0, 40.0, 90.0))
    assert block.interleaved_median_us is None
    assert block.log_ratio == pytest.approx(math.log(40.0))


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
    assert measured([us * 1.2], [us] * 5, work=work).exceeded == exceeded


def test_an_unknown_gpu_has_no_share():
    unknown = measured([27.0], device=Device(arch="sm_90", name="NVIDIA H999"))
    assert unknown.share_of_limit is None
    assert unknown.exceeded is None
    assert unknown.rate == pytest.approx(4963, rel=1e-3)


def test_rate_and_share_are_those_of_the_nearer_limit():
    dense = measured([200.0], work=DENSE)
    assert dense.rate == dense.tflops == pytest.approx(687.2, rel=1e-3)
    assert dense.share_of_limit == pytest.approx(687.2 / 989.5, rel=1e-2)
    thin = measured([200.0], work=Work(flops=1e6, bytes=8e8, dtype="float16"))
    assert thin.rate == thin.gb_per_s == pytest.approx(4000)
    assert thin.share_of_limit == pytest.approx(4000 / 4800)


def test_work_that_counts_nothing_has_no_rate():
    nothing = measured([40.0], work=Work())
    assert (nothing.tflops, nothing.gb_per_s, nothing.rate) == (None, None, None)


def test_a_timer_needs_only_a_device_and_times():
    class Fixed(Timer):
        device = H200

        def time_block(self, launches):
            return [[40.0] for _ in launches]

    timer = Fixed()
    assert timer.reference_workload("TFLOPS") is None
    assert (timer.environment(), timer.problems(), timer.sm_clock_mhz()) == ({}, (), None)
    assert timer.time_block([len, len]) == [[40.0], [40.0]]


DEVICE = Device(arch="sm_90", name="NVIDIA H200")


def test_a_reference_workload_that_had_an_accident_explains_nothing():
    blocks = tuple(Block(samples_us=(40.0,), interleaved_us=(us,)) for us in (100.0, 101.0, 130.0))
    measurement = Measurement(
        device=DEVICE, blocks=blocks, work=Work(bytes=1e8), reference_workload="a workload"
    )
    assert measurement.best_pair(0.6) == (40.0, 101.0)


def test_the_block_that_the_reference_workload_makes_fastest_is_taken():
    blocks = tuple(
        Block(samples_us=(own,), interleaved_us=(us,))
        for own, us in ((40.0, 100.0), (40.4, 105.0), (41.0, 106.0))
    )
    measurement = Measurement(
        device=DEVICE, blocks=blocks, work=Work(flops=1e9), reference_workload="a workload"
    )
    assert measurement.best_pair(0.8) == (40.4, 105.0)
    assert measurement.best_pair(0.0)[0] == 40.0


def test_without_a_reference_workload_the_fastest_block_is():
    blocks = (Block(samples_us=(41.0,)), Block(samples_us=(40.0,)))
    assert Measurement(device=DEVICE, blocks=blocks, work=Work()).best_pair(0.8) == (40.0, None)
