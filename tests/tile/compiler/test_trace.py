from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from typing import Any

import cuda.tile as ct
import cuda.tile.tune
import pytest
import torch

from pytest_cutile.tile.compiler import pretend_gpu, pretended_backing, record_launches
from tests.tile.compiler import launchers


def gpu_vector(n: int = 1000) -> torch.Tensor:
    return torch.ones(n, device="cuda")


def test_a_launch_is_recorded_with_its_grid_and_arguments() -> None:
    [launch] = record_launches(lambda: launchers.add(gpu_vector(), gpu_vector()), "sm_121")
    assert launch.kernel is launchers.add_kernel
    assert launch.grid == (8,)
    x, y, out, tile = launch.args
    assert tile == 128
    assert [(t.device.type, t.shape, t.dtype) for t in (x, y, out)] == [("meta", (1000,), torch.float32)] * 3


def test_launches_are_recorded_in_order_also_from_imported_names() -> None:
    launches = record_launches(
        lambda: [launchers.add_by_name(gpu_vector()), launchers.add(gpu_vector(), gpu_vector())],  # type: ignore[func-returns-value]
        "sm_90",
    )
    assert [launch.args[3] for launch in launches] == [16, 128]


def test_a_launch_that_comes_to_nothing_is_an_empty_list() -> None:
    assert record_launches(lambda: None, "sm_90") == []


def test_hints_of_a_replaced_kernel_are_kept() -> None:
    [launch] = record_launches(lambda: launchers.add_with_hints(gpu_vector()), "sm_90")
    assert launch.kernel is not launchers.add_kernel
    assert launch.kernel._compiler_options.num_ctas == 2


def test_layout_of_views_survives() -> None:
    def views() -> None:
        x = torch.empty((32, 64), dtype=torch.float16, device="cuda")
        ct.launch(
            torch.cuda.current_stream(),
            (1,),
            launchers.add_kernel,
            (x.t(), x[1:, 3:], [x[:1].expand(7, 64)], 1),
        )

    for backing in ("meta", "cpu"):
        with pretend_gpu("sm_90", backing) as recorder:
            views()
        [launch] = recorder.launches
        transposed, sliced, [expanded], _ = launch.args
        assert (transposed.shape, transposed.stride()) == ((64, 32), (1, 64))
        assert (sliced.shape, sliced.stride(), sliced.storage_offset()) == ((31, 61), (64, 1), 67)
        assert (expanded.shape, expanded.stride()) == ((7, 64), (0, 1))


def test_code_that_needs_values_is_traced_again_on_the_cpu() -> None:
    backings = []

    def run() -> None:
        backings.append(pretended_backing())
        launchers.add_positive(torch.tensor([1.0, -1.0, 2.0], device="cuda"))

    [launch] = record_launches(run, "sm_90")
    assert launch.grid == (2,)
    assert backings == ["meta", "cpu"]
    assert pretended_backing() is None


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x[0].item(),
        lambda x: x.tolist(),
        lambda x: bool(x.any()),
        lambda x: int(x[0]),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.cpu().numpy(),
        lambda x: torch.equal(x, x),
        lambda x: x.to("cpu"),
        torch.unique,
    ],
)
def test_whatever_needs_values_leads_to_the_cpu(use) -> None:
    def run() -> None:
        use(gpu_vector(16))
        launchers.add_by_name(gpu_vector(16))

    [launch] = record_launches(run, "sm_90")
    assert launch.grid == (1,)


def test_uninitialized_memory_on_the_cpu_is_zero() -> None:
    def run() -> None:
        x = torch.empty(64, dtype=torch.int32, device="cuda")
        launchers.add_by_name(x)
        assert x.sum().item() == x.new_empty(3).sum().item() == torch.empty_like(x).sum().item() == 0

    assert len(record_launches(run, "sm_90")) == 1


def test_exceptions_of_user_code_go_through() -> None:
    calls: list[None] = []

    def run() -> None:
        calls.append(None)
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        record_launches(run, "sm_90")
    assert len(calls) == 1
    with pytest.raises(ValueError, match="on the GPU, please"):
        record_launches(lambda: launchers.add(torch.ones(3), gpu_vector(3)), "sm_90")


@pytest.mark.parametrize(
    ("grid", "kernel", "args", "error", "message"),
    [
        ([1], launchers.add_kernel, (), TypeError, "must be a tuple"),
        ((1, 1, 1, 1), launchers.add_kernel, (), ValueError, "at most 3"),
        ((2**24,), launchers.add_kernel, (), ValueError, "within"),
        ((1, 65536), launchers.add_kernel, (), ValueError, r"within 0 and \(16777215, 65535\)"),
        ((1, 1, 65536), launchers.add_kernel, (), ValueError, "within"),
        ((-1,), launchers.add_kernel, (), ValueError, "within"),
        ((1.5,), launchers.add_kernel, (), AttributeError, "__index__"),
        ((1,), print, (), TypeError, "expects a tile kernel"),
        ((1,), launchers.add_kernel, [], TypeError, "expects a tuple"),
    ],
)
def test_refuses_what_launch_refuses(grid, kernel, args, error, message) -> None:
    with pytest.raises(error, match=message):
        record_launches(lambda: ct.launch(0, grid, kernel, args), "sm_90")


def test_the_largest_grid_is_recorded() -> None:
    grid = (2**24 - 1, 65535, 65535)
    [launch] = record_launches(lambda: ct.launch(0, grid, launchers.add_kernel, ()), "sm_90")
    assert launch.grid == grid


def test_tuning_takes_the_first_configuration() -> None:
    results = []
    [launch] = record_launches(lambda: results.append(launchers.tuned_add(gpu_vector(64))), "sm_90")
    assert launch.args[3] == 32
    assert launch.grid == (2,)
    assert "1 succeeded, 0 failed" in str(results[0])


@pytest.mark.parametrize(
    ("arch", "capability", "sms"),
    [
        ("sm_80", (8, 0), 108),
        ("sm_86", (8, 6), 84),
        ("sm_87", (8, 7), 16),
        ("sm_90", (9, 0), 132),
        ("sm_100", (10, 0), 148),
        ("sm_110", (11, 0), 20),
        ("sm_121", (12, 1), 48),
        ("sm_107", (10, 7), 132),
    ],
)
def test_torch_answers_for_the_architecture(arch, capability, sms) -> None:
    with pretend_gpu(arch):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_capability() == capability
        properties: Any = torch.cuda.get_device_properties(torch.device("cuda:0"))
        assert (properties.major, properties.minor) == capability
        assert properties.multi_processor_count == sms
        assert properties.name == torch.cuda.get_device_name(0)
        assert properties.shared_memory_per_block_optin in {99 * 1024, 163 * 1024, 227 * 1024}
        assert torch.cuda.mem_get_info()[1] == properties.total_memory > 2**34
        assert torch.cuda.is_bf16_supported()
        torch.cuda.synchronize()
        with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            assert event.elapsed_time(event) > 0
        torch.manual_seed(0)


def test_there_is_one_gpu() -> None:
    with pretend_gpu("sm_90"):
        for use in (
            lambda: torch.empty(3, device="cuda:1"),
            lambda: torch.cuda.get_device_properties(1),
            lambda: torch.cuda.set_device("cuda:2"),
        ):
            with pytest.raises(RuntimeError, match="invalid device ordinal"):
                use()


def test_cached_answers_do_not_leak_between_architectures() -> None:
    launchers.count_sms.cache_clear()
    cached = launchers.count_sms
    for arch, sms in (("sm_90", 132), ("sm_121", 48), ("sm_90", 132)):
        [launch] = record_launches(lambda: launchers.add_persistent(gpu_vector()), arch)
        assert launch.grid == (sms,)
    assert launchers.count_sms is cached
    assert cached.cache_info().currsize == 0


def snapshot() -> dict[str, object]:
    names = {f"torch.cuda.{name}": value for name, value in vars(torch.cuda).items()}
    names |= {f"torch.accelerator.{name}": value for name, value in vars(torch.accelerator).items()}
    names |= {f"launchers.{name}": value for name, value in vars(launchers).items()}
    names |= {"launch": ct.launch, "search": cuda.tile.tune.exhaustive_search, "Generator": torch.Generator}
    return {name: id(value) for name, value in names.items()}


def test_everything_is_restored_also_after_an_error() -> None:
    before = snapshot()
    with pretend_gpu("sm_90"):
        assert snapshot() != before
    assert snapshot() == before
    with pytest.raises(KeyboardInterrupt), pretend_gpu("sm_90"):
        raise KeyboardInterrupt
    assert snapshot() == before
    assert pretended_backing() is None
    assert not torch.empty(3, device="meta").is_cuda


@torch.library.custom_op("pytest_cutile_tests::add", mutates_args={"x"}, device_types="cuda")
def add_operator(x: torch.Tensor) -> torch.Tensor:
    launchers.add_by_name(x)
    return torch.empty_like(x)


@torch.library.custom_op("pytest_cutile_tests::add_anywhere", mutates_args={"x"})
def add_anywhere_operator(x: torch.Tensor) -> None:
    launchers.add_by_name(x)


@add_anywhere_operator.register_fake
def _(x: torch.Tensor) -> None:
    pass


@pytest.mark.parametrize("backing", ["meta", "cpu"])
@pytest.mark.parametrize("use", [add_operator, add_anywhere_operator, torch.ops.pytest_cutile_tests.add])
def test_launches_inside_of_custom_operators_are_recorded(backing, use) -> None:
    with pretend_gpu("sm_90", backing) as recorder:
        use(gpu_vector())
    [launch] = recorder.launches
    assert launch.kernel is launchers.add_kernel


def test_what_torch_compile_made_runs_as_it_was_written() -> None:
    @torch.compile(backend="eager")
    def compiled(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        launchers.add_by_name(y)
        return y

    [launch] = record_launches(lambda: compiled(gpu_vector()), "sm_90")
    assert launch.kernel is launchers.add_kernel


def test_a_module_imported_meanwhile_records_and_keeps_nothing(tmp_path, monkeypatch) -> None:
    (tmp_path / "imported_late.py").write_text(
        "from cuda.tile import launch\n"
        "from torch.cuda import get_device_capability, current_stream\n"
        "from tests.tile.compiler.launchers import add_kernel\n"
        "def run(x):\n"
        "    launch(current_stream(), (get_device_capability()[0],), add_kernel, (x, x, x, 16))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def run() -> None:
        importlib.import_module("imported_late").run(gpu_vector())

    try:
        [launch] = record_launches(run, "sm_120")
        module: Any = sys.modules["imported_late"]
    finally:
        sys.modules.pop("imported_late", None)
    assert launch.grid == (12,)
    assert module.launch is ct.launch
    assert module.get_device_capability is torch.cuda.get_device_capability


@pytest.mark.slow
def test_what_torch_imports_of_itself_meanwhile_keeps_nothing() -> None:
    # Meta arithmetic imports torch._dynamo, which looks at every function of torch.cuda and remembers it.
    script = (
        "import sys, torch\n"
        "from pytest_cutile.tile.compiler import pretend_gpu\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "with pretend_gpu('sm_90'):\n"
        "    (torch.ones(3, device='cuda') + 1) * 2.0\n"
        "    import torch._dynamo\n"
        "ours = [(m, n) for m in list(sys.modules) if m.startswith('torch')\n"
        "        for n, v in list(vars(sys.modules[m]).items())\n"
        "        if getattr(v, '__module__', '') == 'pytest_cutile.tile.compiler.trace.cuda_api']\n"
        "assert not ours, ours\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_tracing_needs_no_memory() -> None:
    [launch] = record_launches(
        lambda: launchers.add_by_name(torch.empty((1 << 20, 1 << 20), device="cuda")), "sm_90"
    )
    assert launch.args[0].numel() == 1 << 40


def test_a_dataclass_describes_the_gpu() -> None:
    with pretend_gpu("sm_90"):
        properties = torch.cuda.get_device_properties()
    assert dataclasses.is_dataclass(properties)


def test_tracing_is_quick() -> None:
    import time

    record_launches(lambda: launchers.add_by_name(gpu_vector()), "sm_90")
    start = time.thread_time()
    for _ in range(10):
        record_launches(lambda: launchers.add_by_name(gpu_vector()), "sm_90")
    assert (time.thread_time() - start) / 10 < 0.1
    assert "torch" in sys.modules
