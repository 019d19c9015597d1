"""The tuner, from its command line to the kernel's file: a kernel on the CPU, a timer that believes it."""

import json

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch
from pytest_cutile.timing.gpu import nvml
from tests.tools import toy_kernel
from tests.tools.toy_kernel import ToyConfig, make_timer
from tools import compare_kernels, tune_kernels
from tools.gpu_runs.agreement import describe_difference
from tools.gpu_runs.measure import geometric_mean, moved, ratio_of, time_interleaved
from tools.gpu_runs.runs import require_gpus
from tools.gpu_runs.suites import difference, load_suite, prepare, select, watched_choice

SUITE = "tests.tools.toy_suite"


@pytest.mark.slow
def test_a_run_reports_the_best_and_every_failure(tmp_path, capsys):
    file = tmp_path / "tuned.json"
    arguments = [SUITE, "--case", "64", "--json", str(file), "--processes", "1"]
    assert tune_kernels.main(arguments, make_timer=make_timer) == 0
    text = capsys.readouterr().out
    document = json.loads(file.read_text())
    (found,) = document["cases"]
    assert document["environment"]["driver"] == "1.2"
    assert found["facets"] == {"itemsize": 2}
    assert found["committed"] == {"us": 120.0, "fault": ""}
    assert [(row["us_per_launch"], row["committed"]) for row in found["rows"]] == [
        (80.0, False),
        (90.0, False),
        (120.0, True),  # once, though the search space holds it again
    ]
    assert found["rows"][0]["ratio"]["value"] == pytest.approx(1.5)
    failures = {each["config"]["fault"]: (each["stage"], each["why"]) for each in found["failures"]}
    assert failures["raises"] == ("check", "RuntimeError: does not compile")
    assert failures["dies"] == ("check", "its process died (exit code 3)")
    assert failures["wrong"][1].startswith("wrong result: output: ")
    assert failures["imprecise"][0] == "final check"  # the fastest, and too coarse for the gate
    assert '"sm_90": ToyConfig(us=80.0),' in text
    assert "1 of 1 cases" in text


def test_a_name_that_is_no_suite_is_said():
    with pytest.raises(SystemExit, match=r"there is no tools\.suite\.nonesuch"):
        load_suite("nonesuch")
    with pytest.raises(SystemExit, match=r"does not define MODULE .*CASES"):
        load_suite("tests.tools.toy_processes")
    assert select([SUITE], "96") == [(SUITE, "fp16-96")]
    assert select([f"{SUITE}[fp16-9", f"{SUITE}[fp16-96]"], "") == [(SUITE, "fp16-96")]


def test_cases_of_tilegyms_benchmark_are_known():
    assert load_suite(SUITE).of_tilegym == {"fp16-64"}
    assert load_suite("tests.tools.wrong_suite").of_tilegym == frozenset()


# -- command lines ----------------------------------------------------------------------------------


@pytest.fixture
def no_gpu(monkeypatch):
    def find_gpu():
        raise nvml.NoGpuError("no NVIDIA driver")

    monkeypatch.setattr(nvml, "find_gpu", find_gpu)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("command", [tune_kernels, compare_kernels])
def test_a_missing_gpu_is_said_once(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command.main([SUITE])
    assert ended.value.code == "this has to run on a GPU: no NVIDIA driver"
    assert not capsys.readouterr().out


def test_a_gpu_that_is_not_there_is_said(monkeypatch):
    device = make_timer().device
    monkeypatch.setattr(nvml, "find_gpu", lambda: device)
    monkeypatch.setattr(nvml, "visible_uuids", lambda: ["GPU-1", "GPU-2"])
    require_gpus([0, 1])
    with pytest.raises(SystemExit, match=r"--device 2: visible GPUs are 0 to 1 \(NVIDIA H200\)"):
        require_gpus([0, 2])


@pytest.mark.parametrize("command", [tune_kernels, compare_kernels])
@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--processes", "0"), "--processes: '0' is no integer of at least 1"),
        (("--processes", "two"), "--processes: 'two' is no integer of at least 1"),
        (("--device", "0,x"), "--device: '0,x' is no list of GPUs' numbers"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(command, option, said, capsys):
    with pytest.raises(SystemExit):
        command.main([SUITE, *option])
    assert said in capsys.readouterr().err


# -- the best of an entry over its cases ------------------------------------------------------------


def test_an_entry_is_the_best_over_all_its_cases():
    best, gain = tune_kernels.best_for_all(
        [{"a": 2.0, "b": 1.5, "old": 1.0}, {"b": 1.4, "old": 1.0, "a": 0.5}]
    )
    assert best == "b"
    assert gain == pytest.approx((1.5 * 1.4) ** 0.5)
    assert tune_kernels.best_for_all([{"a": 2.0}, {"b": 2.0}]) == ("", 0.0)


def test_what_failed_is_not_right():
    rows = [{"source": name, "config": {"name": name}} for name in ("a", "old")]
    found = {"rows": rows, "failures": [{"config": {"name": "a"}}]}
    assert [row["source"] for row in tune_kernels.right_rows(found)] == ["old"]


def test_a_difference_names_only_what_differs():
    assert difference({"a": 1, "b": 2}, {"a": 1, "b": 3}) == "b=2"
    assert difference({"a": 1}, {"a": 1}) == "as committed"
    assert difference({"a": 1}, None) == "a=1"


# -- times and results ------------------------------------------------------------------------------


def test_a_ratio_is_taken_within_blocks_and_trimmed():
    slower = [(2.0 * factor,) for factor in range(1, 9)]
    faster = [(1.0 * factor,) for factor in range(1, 8)] + [(1.0,)]  # the last block had an accident
    assert str(ratio_of(slower, faster)) == "2.000 [2.000, 2.000]"
    assert ratio_of([(4.0,), (6.0,)], [(2.0,), (2.0,)]).high == 3.0
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_samples_go_to_the_launch_that_they_are_of():
    case = prepare(SUITE, "fp16-64", "cpu")
    launches = [case.launcher(ToyConfig(us=us)) for us in (10.0, 20.0, 30.0)]
    samples = time_interleaved(make_timer(), launches, case.inputs)
    assert [{block[1] for block in blocks} for blocks in samples] == [{10.0}, {20.0}, {30.0}]
    assert [len(blocks) for blocks in samples] == [8, 8, 8]
    long = [case.launcher(ToyConfig(us=4000.0))]
    assert len(time_interleaved(make_timer(), long, case.inputs, seconds=0.02)[0]) == 3


def test_moved_tensors_come_home(monkeypatch):
    from contextlib import contextmanager

    from pytest_cutile.tile.tensors.trees import map_tensors
    from pytest_cutile.timing.measure import placement

    @contextmanager
    def elsewhere(inputs):
        yield map_tensors(lambda tensor: tensor.clone(), inputs)

    monkeypatch.setattr(placement, "placed_anew", elsewhere)
    x = torch.arange(6.0).reshape(2, 3).T
    home = x.data_ptr()
    with moved({"x": x}):
        assert x.data_ptr() != home
        assert x.tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (x.data_ptr(), x.stride()) == (home, (1, 3))


def test_the_choice_of_a_launcher_is_seen():
    case = prepare(SUITE, "fp16-64", "cpu")
    with watched_choice(toy_kernel) as choice:
        case.launcher()()
    assert (choice.config, choice.facets) == (ToyConfig(us=120.0), {"itemsize": 2})
    assert (choice.chooser, choice.configs) == ("choose_config", [ToyConfig(us=120.0)])
    with watched_choice(object()) as choice:
        assert choice.config is None


def test_gross_errors_are_differences_and_roundings_are_not():
    x = torch.randn(1000, dtype=torch.float64)
    half = x.half()
    assert describe_difference(half, x, half) is None
    wrong = torch.cat([half[:-1], half.new_tensor([9.0])])
    assert "1 of 1,000" in str(describe_difference(wrong, x, half))
    assert describe_difference(half.reshape(10, 100), x, half) is None
    assert describe_difference(half[:10], x, half) == "output is float16 [10], not float64 [1000]"
    assert describe_difference(None, x, half) == "returned None, not float64 [1000]"
    nan = torch.tensor([float("nan"), float("inf"), 1.0])
    assert describe_difference(nan, nan.clone(), nan) is None
    assert describe_difference(nan, torch.ones(3), nan) is not None
    assert describe_difference((half, half), half, half) is None  # a peer may return less


def test_noise_is_measured_by_the_row_it_is_in():
    """The first rows of causal attention are much larger than the rest, and their noise is, too."""
    exact = torch.randn(1024, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact[8:] *= 2.0**-6
    noise = torch.randn(1024, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact[0, 0] = 0.0  # near zero beside large neighbours
    scale = exact.square().mean(1, keepdim=True).sqrt()
    half = (exact + 2.0**-11 * scale * noise).half()
    half[0, 0] = 2.0**-9
    assert describe_difference(half, exact, half) is None
    half[8, 0] += 2.0**-9
    assert "1 of 65,536" in str(describe_difference(half, exact, half))


def test_large_work_is_checked_coarsely(monkeypatch):
    from tools.gpu_runs import agreement

    case = prepare(SUITE, "fp16-64", "cpu")
    imprecise = ToyConfig(fault="imprecise")
    with pytest.raises(KernelMismatch):
        agreement.check_exactly(case, imprecise)
    monkeypatch.setattr(agreement, "SHARP_FLOPS", -1)
    agreement.check_exactly(case, imprecise)
    with pytest.raises(KernelMismatch, match="elements differ"):
        agreement.check_exactly(case, ToyConfig(fault="wrong"))
