"""Attention that turns around is attention, whatever walks where; and the cache model says what it saves."""

import json
from dataclasses import replace

import pytest
import torch

from kernels import fmha
from pytest_cutile.interpreter import interpret
from pytest_cutile.timing.profiling import ncu
from pytest_cutile.timing.profiling.counters import KernelCounters
from pytest_cutile.timing.profiling.ncu import ProfilingError
from pytest_cutile.words.platforms.lookup import find_platform
from studies.running.attention import case
from studies.running.run import run_study
from studies.sawtooth import counters, kernel, main
from studies.sawtooth.cache import Walk, traffic
from studies.sawtooth.drift import drift
from studies.sawtooth.drift import main as drift_command
from studies.sawtooth.kernel import SawtoothConfig
from studies.sawtooth.suite import configs
from tests.studies.pretended import PretendedTimer, on_the_cpu

TILE = 16


def attend(n, *, causal, turning):
    """Return attention by two blocks, with what is right."""
    torch.manual_seed(n)
    q, k, v = (torch.randn(1, 2, n, 64, dtype=torch.float16) for _ in range(3))
    config = SawtoothConfig(tile_m=TILE, tile_n=32, sms=2, turning=turning)
    with interpret(arch="sm_121") as run:
        out = kernel.sawtooth(q, k, v, causal=causal, config=config)
    assert [launch.grid for launch in run.launches] == [(2,)]
    return out, fmha.reference(q.double(), k.double(), v.double(), causal=causal)


@pytest.mark.parametrize(("n", "causal"), [(128, True), (117, False), (117, True)])
def test_blocks_that_turn_compute_the_same(n, causal):
    out, expected = attend(n, causal=causal, turning=True)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-3)


def test_every_second_wave_walks_forward():
    """In another order, sums are rounded differently."""
    (turned, expected), (straight, _) = (attend(128, causal=False, turning=each) for each in (True, False))
    torch.testing.assert_close(straight.double(), expected, rtol=0, atol=2e-3)
    last_tile_first = [first_head.flip(0) for first_head in (tiles_of(turned), tiles_of(straight))]
    same = [torch.equal(a, b) for a, b in zip(*last_tile_first, strict=True)]
    assert same == [True, True, False, False] * 2


def tiles_of(out):
    """Return the tiles of the first head."""
    return out[0, 0].reshape(-1, TILE, out.shape[-1])


def test_blocks_that_overlap_or_do_not_stay_cannot_turn():
    for wrong in ({"overlap": True}, {"persistent": False}):
        with pytest.raises(ValueError, match="blocks are persistent, and do not overlap"):
            SawtoothConfig(tile_m=64, tile_n=64, **wrong)


# -- the model --------------------------------------------------------------------------------------

MIB = 1 << 20


def missed(n, l2_mib, **more):
    """Return what one head of 128 dimensions misses, 512 bytes a key, in MiB: K and V alone."""
    walk = Walk(heads=1, n=n, d=128, **{"blocks": 64, "tile_m": 64, **more})
    made = traffic(walk, l2_bytes=l2_mib * MIB)
    passing = made.compulsory - walk.kv_bytes
    return (made.missed - passing) / MIB


def test_keys_that_fit_are_missed_once():
    for turning in (False, True):
        assert missed(32768, 16.5, turning=turning) == 16


def test_in_order_nothing_is_left_of_more_than_fits():
    """Eight waves of 4096 queries each load all."""
    assert missed(32768, 15) == 8 * 16


@pytest.mark.parametrize("l2_mib", [4, 8, 12])
def test_turning_each_wave_finds_what_fits(l2_mib):
    """The first of eight waves loads all, the others what the L2 does not hold."""
    assert missed(32768, l2_mib, turning=True) == pytest.approx(16 + 7 * (16 - l2_mib), abs=1.0)


def test_fewer_blocks_miss_more():
    assert missed(32768, 8, blocks=16) == 4 * missed(32768, 8, blocks=64)


def test_the_published_saving_is_that_of_keys_half_as_large_again_as_the_l2():
    """NVIDIA: up to 67 % fewer non-compulsory misses on GB10, whose L2 has 24 MiB."""
    n = 36 * MIB // 512
    saved = 1 - (missed(n, 24, turning=True) - 36) / (missed(n, 24) - 36)
    assert saved == pytest.approx(2 / 3, abs=0.01)


def test_causal_blocks_walk_to_the_diagonal():
    """They look up half as much, and miss what they must where it fits."""
    walk = Walk(heads=2, n=16384, d=128, blocks=64)
    every, half = (traffic(replace(walk, causal=each), l2_bytes=17 * MIB) for each in (False, True))
    passing = half.compulsory - 2 * walk.kv_bytes
    assert (half.looked_up - passing) / (every.looked_up - passing) == pytest.approx(0.5, abs=0.01)
    assert half.missed == every.missed == half.compulsory


@pytest.mark.parametrize("turning", [False, True])
def test_blocks_of_one_speed_read_what_half_of_the_l2_misses(turning):
    """Each partition keeps a copy of all that is read, and loads half of that from the other one."""
    walk = Walk(heads=1, n=8192, d=128, blocks=16, turning=turning)
    step = traffic(walk, l2_bytes=1.5 * MIB)
    q = output = walk.heads * walk.n * walk.d * walk.itemsize
    made = drift(walk, l2_bytes=3 * MIB, spread=0.0)
    assert made.read == step.missed - output
    assert made.missed == q + 1.5 * (made.read - q)


def test_blocks_of_different_speeds_read_more():
    walk = Walk(heads=1, n=8192, d=128, blocks=16)
    same, different = (drift(walk, l2_bytes=3 * MIB, spread=spread) for spread in (0.0, 0.2))
    assert different.read > 1.5 * same.read
    assert different.missed > different.read


# -- the study --------------------------------------------------------------------------------------


@pytest.fixture
def tiny(monkeypatch):
    """Let the lengths be a few keys."""
    values = {
        "LENGTHS": (64,),
        "CAUSAL_LENGTHS": (64,),
        "SM_LENGTH": 64,
        "GPUS": ("NVIDIA GB10", "NVIDIA H200"),
        "PREDICTED_LENGTHS": (65536,),
        "PREDICTED_CAUSAL_LENGTHS": (65536,),
    }
    for name, value in values.items():
        monkeypatch.setattr(main, name, value)


@pytest.mark.usefixtures("tiny")
def test_the_study_says_what_turning_gains_and_what_the_model_expects(tmp_path):
    names = [row.contender.name for row in main.STUDY.rows(False)]
    times = dict.fromkeys(names, 100.0) | {"turning": 80.0, "turning, 1/4 of the SMs": 90.0}
    record = run_study(on_the_cpu(main.STUDY), PretendedTimer(times), tmp_path)
    assert not record.errors
    row = record.find("turning, 1/4 of the SMs", "fp16-1x1x64x128")
    assert row is not None
    assert row.beside == "in order, 1/4 of the SMs"
    assert row.headline.speedup == pytest.approx(100 / 90)
    text = (tmp_path / "sawtooth.md").read_text()
    assert "| turning | fp16-causal-1x1x64x128 | in order | 0.080 | 0.0 | 1.250 |" in text
    drawn = (tmp_path / "sawtooth.svg").read_text()
    assert drawn.count("64 keys: 1.25") == 4  # both masks, both regimes
    for title in ("Speed-up of turning, burst", "Misses, predicted by half of the L2"):
        assert f">{title}</text>" in drawn
    predicted = json.loads((tmp_path / "prediction.json").read_text())
    assert {each["gpu"] for each in predicted} == set(main.GPUS)
    assert {each["case"] for each in predicted} == {"fp16-1x1x65536x128", "fp16-causal-1x1x65536x128"}
    # One L2, and half of it: without a mask K and V fit into one, and not into the half.
    assert "| H200 | 60 | 65536 | 32 | 67 | 67 | 0.00 | 0.000 | 168 | 73 | 0.94 | 0.005 |" in text
    assert "| H200 | 60 | 65536 causal | 32 | 67 | 67 | 0.00 | 0.000 |" in text


def test_turning_is_predicted_to_pay_little_where_waves_are_wide():
    """Each byte that is missed serves thousands of queries: memory is far from the limit."""
    gpu = find_platform("NVIDIA GB10")
    assert gpu is not None
    made = main.predict(gpu, case(65536).params)
    assert made.saved == pytest.approx(24 / 32, abs=0.01)
    assert 1.0 < made.most_speedup < 1.1
    fits = main.predict(gpu, case(16384).params)
    assert (fits.saved, fits.most_speedup) == (0.0, 1.0)


def test_the_tuner_may_choose_the_direction():
    assert {config.turning for config in configs("sm_90", causal=False)} == {False, True}


COUNTED = {
    "lts__t_sectors_srcunit_tex.sum": 4e6,
    "lts__t_sectors_srcunit_tex_lookup_miss.sum": 2e6,
    "lts__t_sectors_lookup_miss.sum": 2e6,
    "dram__bytes_read.sum": 2e6,
}
"""Of a GPU that does not count the time."""


@pytest.fixture
def count(monkeypatch):
    """Return a function that counts with a pretended ncu; `fails` maps a contender to its error."""
    monkeypatch.setattr(counters, "find_ncu", lambda: None)
    asked = []

    def run(folder, *, fails, **environment):
        def collect(command, **how):
            assert how["metrics"] == counters.METRICS
            asked.append(command[-1])
            if (error := fails.get(command[-1].partition("[")[0])) is not None:
                raise error
            launches = [{}, COUNTED]
            return [KernelCounters(kernel="sawtooth_kernel", values=each) for each in launches]

        class Gpu(PretendedTimer):
            def environment(self):
                return environment

        monkeypatch.setattr(counters, "collect", collect)
        asked.clear()
        code = counters.main(["--quick", "--output", str(folder)], make_timer=lambda: Gpu({}))
        return code, [*asked]

    monkeypatch.setattr(main, "QUICK_LENGTHS", (65536,))
    return run


CASE = "fp16-1x1x65536x128"


def test_counters_are_written_beside_the_prediction_and_go_on_where_they_were(tmp_path, count, capsys):
    names = [f"{name}[{CASE}]" for name in ("in order", "turning", "kernels.fmha")]
    nothing = ProfilingError("Nsight Compute saw no launch")
    assert count(tmp_path, fails={"turning": nothing}) == (1, names)
    document = json.loads((tmp_path / "sawtooth" / "counters.json").read_text())
    assert document["errors"] == {names[1]: "Nsight Compute saw no launch"}
    row, other = document["rows"]
    assert row["counters"] == COUNTED | {"gpu__time_duration.sum": None}
    assert row["predicted_missed_l2"] == 4 * 65536 * 128 * 2  # it fits into an H200's
    assert row["predicted_missed_half_l2"] > row["predicted_missed_l2"]
    assert other["predicted_missed_l2"] is None
    text = (tmp_path / "sawtooth" / "counters.md").read_text()
    assert f"| {CASE} | in order | 32 | 128 | 64 | 2 | 67 |" in text
    assert f"Not counted: {names[1]}: Nsight Compute saw no launch" in text
    drawn = (tmp_path / "sawtooth" / "counters.svg").read_text()
    assert "in order, counted, 32 MiB: 2 MB" in drawn
    assert "in order, model, 32 MiB: 151 MB" in drawn  # without 17 MB that are written
    assert "3 of 3" in capsys.readouterr().out
    assert count(tmp_path, fails={}) == (0, names[1:2])
    with pytest.raises(SystemExit, match=r"driver none \(now 2\.0\)"):
        count(tmp_path, fails={}, driver="2.0")


def test_counters_that_nobody_may_read_are_said_once(tmp_path, count):
    with pytest.raises(SystemExit, match="only administrators"):
        count(tmp_path, fails={"in order": ProfilingError(f"only administrators ({ncu.NO_PERMISSION})")})


def test_without_ncu_the_counters_say_what_is_missing(monkeypatch):
    monkeypatch.setattr(ncu, "find_program", lambda *_: None)
    with pytest.raises(SystemExit, match=r"Nsight Compute \(ncu\) is not installed"):
        counters.main([])


def test_a_row_that_is_none_is_told_in_words():
    with pytest.raises(SystemExit, match="the study sawtooth has no row nosuch"):
        counters.main(["--one", "nosuch"])


def test_the_commands_are_named_as_they_are_called(capsys):
    for run, name in ((counters.main, "counters"), (drift_command, "drift")):
        with pytest.raises(SystemExit):
            run(["--help"])
        assert capsys.readouterr().out.startswith(f"usage: python -m studies.sawtooth.{name} ")
