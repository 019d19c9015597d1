import math
import random
from dataclasses import replace

import pytest
from msgspec import structs
from pytest_cutile.speed.comparisons import (
    SLOPES,
    SLOPES_IN_TIME,
    PairedComparison,
    PublishedComparison,
    StoredComparison,
    StoredRuns,
    log_time,
)

from pytest_cutile import Block, Device, Measurement, Work
from pytest_cutile.baselines.entries import Published
from pytest_cutile.platforms.lookup import find_platform
from pytest_cutile.speed.decide import NO_SESSION_EFFECT, STORED_NOISE, Decision, Rule, SessionEffect
from tests.baselines.test_speed import entry, run

RULE = Rule()
H200 = find_platform("NVIDIA H200")
HERE = Device(arch="sm_90", name="NVIDIA H200", uuid="GPU-1")
THERE = replace(HERE, uuid="GPU-2")
THIN = Work(bytes=1e8)
DENSE = Work(flops=1.4e11, dtype="bfloat16")
MM = "torch 2.11.0 mm bf16 4096x2048x4096"


def stored_entry(work=THIN, reference_workload=MM, workload_us=100.0, times=(40.0, 40.0, 40.0)):
    runs = tuple(run(us, workload_us=workload_us, session=f"s{n}") for n, us in enumerate(times))
    return entry(work=work, runs=runs, reference_workload=reference_workload)


def measured(*blocks, reference_workload=MM, work=THIN):
    return Measurement(
        device=HERE,
        blocks=tuple(
            Block(samples_us=(own,), interleaved_us=(interleaved_us,)) for own, interleaved_us in blocks
        ),
        work=work,
        platform=H200,
        reference_workload=reference_workload,
    )


FIRST = measured((40.0, 100.0))


def stored(entry_, *, device=HERE, reference_workload=MM):
    comparison = StoredRuns({"k": entry_}, rule=RULE, platform=H200).compare(
        entry_, device, reference_workload
    )
    assert isinstance(comparison, StoredComparison)
    return comparison


# -- stored runs --------------------------------------------------------------------------------------


def test_stored_runs_are_compared_with_the_fastest_place():
    comparison = stored(stored_entry())
    assert comparison.change([measured((42.0, 100.0), (41.0, 100.0))]) == pytest.approx(0.025)
    assert comparison.baseline_us == pytest.approx(40.0)


def test_a_compute_bound_case_follows_its_reference_workload():
    comparison = stored(stored_entry(DENSE))
    slow_day = measured((44.0, 110.0), (45.0, 110.0), work=DENSE)
    assert comparison.slope == pytest.approx(SLOPES_IN_TIME["TFLOPS"])
    assert comparison.change([slow_day]) == pytest.approx(1.1**0.3 - 1)


def test_a_memory_bound_case_follows_less():
    comparison = stored(stored_entry(THIN))
    assert comparison.slope == pytest.approx(SLOPES_IN_TIME["GB/s"])
    assert comparison.change([measured((44.0, 110.0))]) == pytest.approx(1.1**0.9 - 1)


@pytest.mark.parametrize(("work", "bound"), [(DENSE, "TFLOPS"), (THIN, "GB/s")])
def test_another_gpu_moves_a_case_otherwise_than_another_day(work, bound):
    comparison = stored(
        structs.replace(
            stored_entry(work),
            runs=tuple(structs.replace(run(40.0, workload_us=100.0), gpu_uuid="GPU-b") for _ in "abc"),
        )
    )
    assert comparison.other_gpu
    assert comparison.slope == pytest.approx(SLOPES[bound])


@pytest.mark.parametrize("slope", [0.0, 0.4, 1.0])
def test_runs_of_several_gpus_tell_how_much_a_case_follows(slope):
    gpus = [(100.0, "GPU-a"), (103.0, "GPU-b"), (97.0, "GPU-c")]
    runs = tuple(
        structs.replace(
            run(40.0 * (workload_us / 100) ** slope, workload_us=workload_us, session=f"s{n}"), gpu_uuid=gpu
        )
        for n, (workload_us, gpu) in enumerate(gpus * 4)
    )
    comparison = stored(structs.replace(stored_entry(DENSE), runs=runs))
    assert comparison.slope == pytest.approx(slope, abs=0.05)
    elsewhere = measured((40.0 * 1.04**slope, 104.0), work=DENSE)
    assert comparison.change([elsewhere]) == pytest.approx(0.0, abs=0.002)


@pytest.mark.parametrize(
    ("stored_workload", "workload"),
    [(MM, MM.replace("2.11", "2.12")), (MM, ""), ("", MM), ("", "")],
)
def test_another_reference_workload_is_not_followed(stored_workload, workload):
    comparison = stored(stored_entry(DENSE, reference_workload=stored_workload), reference_workload=workload)
    assert comparison.slope == 0
    assert comparison.change(
        [measured((44.0, 50.0), work=DENSE, reference_workload=workload)]
    ) == pytest.approx(0.1)


def test_a_reference_workload_that_some_runs_lack_is_not_followed():
    whole = stored_entry(DENSE)
    partial = structs.replace(
        whole, runs=(*whole.runs, run(40.0, session="no memory for the reference workload"))
    )
    comparison = stored(partial)
    assert comparison.slope == 0
    assert comparison.change([measured((40.0, 50.0), work=DENSE)]) == pytest.approx(0.0, abs=1e-9)


def test_what_a_reference_workload_that_moved_explains_is_known_less_well():
    comparison = stored(stored_entry(DENSE))
    errors = [
        comparison.estimate([measured((40.0, workload_us), work=DENSE)]).error
        for workload_us in (100.0, 100.2, 103.0, 110.0)
    ]
    assert errors[0] == errors[1]  # such movements are in what is assumed of sessions
    assert errors[1] < errors[2] < errors[3]
    assert errors[3] > 0.02  # slopes differ by 0.3 from case to case
    runs = tuple(
        structs.replace(
            run(40.0 * (workload_us / 100) ** 0.8, workload_us=workload_us, session=f"s{n}"), gpu_uuid=gpu
        )
        for n, (workload_us, gpu) in enumerate([(100.0, "GPU-a"), (110.0, "GPU-b")] * 3)
    )
    assumed = stored(stored_entry(DENSE), device=THERE)
    learnt = stored(structs.replace(stored_entry(DENSE), runs=runs), device=THERE)
    assumed_error, error = (
        each.estimate([measured((40.0, 110.0), work=DENSE)]).error for each in (assumed, learnt)
    )
    assert error < 0.75 * assumed_error


def test_how_much_a_case_follows_on_a_gpu_is_not_told_by_other_gpus():
    """From GPU to GPU it may even move the other way."""
    others = tuple(
        structs.replace(run(us, workload_us=workload_us, session=f"s{n}"), gpu_uuid=f"GPU-other-{n}")
        for n, (us, workload_us) in enumerate([(41.0, 90.0), (39.0, 110.0)] * 3)
    )
    entry = stored_entry(DENSE)
    alone, among = stored(entry), stored(structs.replace(entry, runs=(*entry.runs, *others)))
    assert among.slope == alone.slope
    assert stored(structs.replace(entry, runs=(*entry.runs, *others)), device=THERE).slope < alone.slope


def test_a_gpu_is_compared_with_its_own_runs():
    """GPUs differ by far more than sessions: against their mean it would be slow, or fast, for good."""
    alone = stored_entry(reference_workload="")
    others = tuple(run(44.0, session="there", gpu_uuid="GPU-other") for _ in range(9))
    among = structs.replace(alone, runs=(*others, *alone.runs))
    runs = StoredRuns({"k": among}, rule=RULE, platform=H200)
    here, there = (runs.compare(among, device, "") for device in (HERE, THERE))
    own = runs.compare(alone, HERE, "")
    assert isinstance(here, StoredComparison)
    assert isinstance(own, StoredComparison)
    assert here.baseline == here.unadjusted_baseline == own.baseline
    assert (here.entry, here.selected) == (among, alone)
    assert here.baseline_us == pytest.approx(40.0)
    assert here.change([FIRST]) == pytest.approx(0.0)
    assert not here.other_gpu
    assert there.baseline_us == pytest.approx((40.0 * 44.0) ** 0.5)
    assert there.change([FIRST]) == pytest.approx((40.0 / 44.0) ** 0.5 - 1)


@pytest.mark.parametrize(("device", "other"), [(HERE, False), (THERE, True)])
def test_another_gpu_is_noticed(device, other):
    comparison = stored(stored_entry(), device=device)
    assert comparison.other_gpu is other
    same = stored(stored_entry())
    assert (comparison.estimate([FIRST]).error > same.estimate([FIRST]).error) is other


@pytest.mark.parametrize(
    ("us", "workload_us", "suspect"),
    [(40.0, 50.0, False), (40.3, 50.2, False), (40.8, 52.5, True), (41.2, 54.0, True), (42.0, 60.0, True)],
)
def test_a_slow_reference_workload_hides_no_slowdown(us, workload_us, suspect):
    """The further a reference workload moved, the less certain is what it explains, whatever its sign."""
    runs = tuple(run(40.0, workload_us=50.0, session=f"s{n // 3}") for n in range(12))
    comparison = stored(structs.replace(stored_entry(), runs=runs))
    assert comparison.is_suspect(measured((us, workload_us))) is suspect


@pytest.mark.parametrize("device", [HERE, THERE])
def test_session_effect_that_nobody_knows_yet_hides_no_slowdown(device):
    rng = random.Random(1)
    comparison = stored(stored_entry(), device=device)
    known = comparison.estimate([FIRST]).error
    shared = STORED_NOISE.shared if device is HERE else STORED_NOISE.shared_gpu
    limit = RULE.limit if device is HERE else RULE.limit_on_other_gpu
    missed = 0
    for _ in range(4000):  # the baselines' effect, and today's
        log_time = limit + rng.gauss(0, known) + rng.gauss(0, shared) - rng.gauss(0, shared)
        missed += not comparison.is_suspect(measured((40.0 * math.exp(log_time), 100.0)))
    assert missed / 4000 < 0.008


def test_noise_is_learnt_from_the_cases_of_the_same_limit():
    noisy = (40.0, 44.0, 36.0, 43.0)
    thin = {f"thin[{n}]": stored_entry(THIN, times=noisy) for n in range(20)}
    dense = {f"dense[{n}]": stored_entry(DENSE) for n in range(20)}
    runs = StoredRuns({**thin, **dense}, rule=RULE, platform=H200)
    assert runs.noise("GB/s").session > 5 * STORED_NOISE.session
    assert runs.noise("TFLOPS").session < STORED_NOISE.session
    assert StoredRuns({}, rule=RULE, platform=H200).noise("GB/s") == STORED_NOISE


def test_a_published_figure_says_nothing_of_the_noise():
    published = entry(runs=(), published=Published(median_us=40.0, margin=0.1, source="x"), work=THIN)
    assert StoredRuns({"k": published}, rule=RULE, platform=H200).noise("GB/s") == STORED_NOISE


def test_the_session_effect_is_taken_off():
    comparison = stored(stored_entry())
    found = [measured((42.0, 100.0))] * 3
    assert comparison.decide(found, NO_SESSION_EFFECT, 20) is Decision.SLOWER
    assert comparison.decide(found, SessionEffect(shift=0.05), 20) is Decision.CLEAR
    assert not comparison.is_suspect(found[0], SessionEffect(shift=0.05))
    assert comparison.change(found, SessionEffect(shift=math.log(1.05))) == pytest.approx(0.0, abs=1e-9)


# -- another revision ---------------------------------------------------------------------------------

PAIRED = PairedComparison(rule=RULE, revision="git:main")


def paired(*ratios):
    """A measurement in which the other revision took 40 us, with these ratios at the places."""
    return measured(*((40.0 * ratio, 40.0) for ratio in ratios), reference_workload="")


def scattered(ratio, by):
    return paired(*(ratio + by * step for step in (-1.5, -1.0, -0.5, -0.2, 0.2, 0.5, 1.0, 1.5)))


def test_a_paired_comparison_is_the_ratio_of_the_two_less_the_highest_and_the_lowest_place():
    found = measured((40.0, 50.0), (40.0, 40.0), (44.0, 40.0), (60.0, 40.0), reference_workload="")
    assert PAIRED.change([found]) == pytest.approx(1.1**0.5 - 1)
    assert PAIRED.change([paired(1.0, 1.2, 1.1)]) == pytest.approx(0.1)
    assert PAIRED.change([paired(1.02, 1.04)]) == pytest.approx(0.03, abs=1e-4)
    assert PAIRED.change([paired(1.05)]) == pytest.approx(0.05)
    assert PAIRED.baseline_us is None


def test_a_paired_comparison_does_not_mind_a_slow_day():
    assert PAIRED.change([measured((80.0, 80.0), reference_workload="")]) == 0.0
    found = [scattered(1.02, 0.001)]
    assert PAIRED.estimate(found, SessionEffect(shift=0.02, between=50.0)) == PAIRED.estimate(found)


@pytest.mark.parametrize(
    ("ratios", "by", "decision"),
    [
        ([1.02, 1.021, 1.019], 0.002, Decision.SLOWER),
        ([1.02, 1.021], 0.002, Decision.PENDING),
        ([1.0, 1.001, 0.999], 0.002, Decision.CLEAR),
        ([0.95], 0.002, Decision.CLEAR),
        ([1.0], 0.002, Decision.CLEAR),
        ([1.0], 0.02, Decision.PENDING),  # its places scatter: one process tells nothing
        ([0.99, 1.0, 1.01], 0.02, Decision.PENDING),
        ([1.02, 1.02, 1.02], 0.04, Decision.PENDING),
        ([1.1, 1.11, 1.09], 0.02, Decision.SLOWER),
    ],
)
def test_a_paired_comparison_is_decided_by_the_rule(ratios, by, decision):
    found = [scattered(ratio, by) for ratio in ratios]
    assert PAIRED.decide(found, NO_SESSION_EFFECT, 20) is decision


# -- a published figure -------------------------------------------------------------------------------


def published(margin=0.1):
    figure = entry(runs=(), work=DENSE, published=Published(median_us=100.0, margin=margin, source="x"))
    comparison = StoredRuns({}, rule=RULE, platform=H200).compare(figure, HERE, MM)
    assert isinstance(comparison, PublishedComparison)
    return comparison


def test_a_published_figure_is_a_time_and_follows_no_reference_workload():
    comparison = published()
    assert comparison.baseline_us == 100.0
    assert comparison.change([measured((115.0, 50.0), (105.0, 200.0), work=DENSE)]) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("margin", "us", "suspect"),
    [(0.1, 109.9, False), (0.1, 110.1, True), (0.02, 102.1, True), (0.5, 149.0, False), (0.1, 50.0, False)],
)
def test_a_published_figure_has_its_own_margin(margin, us, suspect):
    comparison = published(margin)
    found = measured((us, 50.0), work=DENSE)
    assert comparison.is_suspect(found, SessionEffect(shift=0.5)) is suspect
    decision = comparison.decide([found] * 3, SessionEffect(shift=0.5), 1000)
    assert decision is (Decision.SLOWER if suspect else Decision.CLEAR)


@pytest.mark.parametrize(
    ("times", "decision"),
    [
        ([120.0], Decision.PENDING),
        ([120.0, 120.0], Decision.PENDING),
        ([120.0, 120.0, 120.0], Decision.SLOWER),
        ([120.0, 101.0], Decision.PENDING),
        ([120.0, 101.0, 105.0], Decision.CLEAR),
    ],
)
def test_below_a_published_figure_is_confirmed_by_three_processes(times, decision):
    found = [measured((us, 50.0), work=DENSE) for us in times]
    assert published().decide(found, NO_SESSION_EFFECT, 20) is decision


@pytest.mark.parametrize(("us", "faster"), [(91.0, False), (90.0, True), (110.0, False)])
def test_faster_than_published_is_beyond_the_margin(us, faster):
    assert published().is_faster(measured((us, 50.0), work=DENSE)) is faster


def test_what_a_published_figure_could_show_is_at_least_its_margin():
    visible = published().estimate([measured((100.0, 50.0), work=DENSE)] * 3).smallest_visible(RULE, 100)
    assert 0.1 < visible < 1.0


@pytest.mark.parametrize(
    ("stored", "slope", "us"),
    [
        (run(10.0, workload_us=5.0), 1.0, 2.0),
        (run(10.0, workload_us=4.0), 0.5, 5.0),
        (run(10.0, workload_us=5.0), 0.0, 10.0),
        (run(10.0), 1.0, 10.0),
    ],
)
def test_a_runs_log_time_is_what_the_reference_workload_leaves_of_it(stored, slope, us):
    value = log_time(stored, slope)
    assert math.exp(value.value) == pytest.approx(us)
    assert (value.session, value.gpu) == (stored.session, stored.gpu_uuid)
