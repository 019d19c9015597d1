"""Two GPUs, neither of which has to be there: where launchers launch, and what they say of mixed operands."""

from contextlib import contextmanager, nullcontext
from threading import Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import cuda.tile as ct
import pytest

from kernels import group_gemm, moe_routing, softmax
from kernels._gemm import GemmConfig
from kernels._launch import beside_current_stream
from pytest_cutile.tile.compiler import pretend_gpu
from tests.kernels.test_launchers import SPECS

torch = pytest.importorskip("torch")
tree_flatten = torch.utils._pytree.tree_flatten
tree_leaves = torch.utils._pytree.tree_leaves
tree_unflatten = torch.utils._pytree.tree_unflatten

by_name = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)


class TwoGpus:
    """An H200, on which all tensors are, and a DGX Spark: what torch and cuTile say and do of them."""

    capabilities = ((9, 0), (12, 1))
    sms = (132, 48)

    def __init__(self, current):
        self.current = current
        self.switches = 0
        self.launches = []
        """(current GPU, stream) at each."""

    @contextmanager
    def device(self, device):
        before, self.current = self.current, torch.device(device).index
        self.switches += 1
        try:
            yield
        finally:
            self.current = before

    def launch(self, stream, *_, **__):
        self.launches.append((self.current, stream))


@pytest.fixture(params=[0, 1], ids=lambda current: f"current{current}")
def gpus(request, monkeypatch):
    """Yield two GPUs, on the first of which `device="cuda"` makes tensors, and either of which is current."""
    gpus = TwoGpus(request.param)
    with pretend_gpu("sm_90", "cpu"), monkeypatch.context() as patch:
        for name, replacement in {
            "current_device": lambda: gpus.current,
            "device": gpus.device,
            "current_stream": lambda: f"stream of GPU {gpus.current}",
            "get_device_capability": lambda: gpus.capabilities[gpus.current],
            "get_device_properties": lambda: SimpleNamespace(multi_processor_count=gpus.sms[gpus.current]),
        }.items():
            patch.setattr(torch.cuda, name, replacement)
        patch.setattr(ct, "launch", gpus.launch)
        yield gpus


def make_on(device):
    def make_tensor(shape, dtype, **_):
        return torch.ones(shape, device=device).to(getattr(torch, dtype))

    return make_tensor


def arguments_of(spec, case, device):
    """Return (args, kwargs)."""
    made = spec.inputs(make_on(device), **case.params)
    return ((), made) if isinstance(made, dict) else (made, {})


def smallest(spec):
    return min(spec.cases, key=lambda case: spec.work_of(case).bytes)


@by_name
def test_launches_on_the_gpu_of_its_tensors(gpus, spec):
    before = gpus.current
    args, kwargs = arguments_of(spec, smallest(spec), "cuda")
    spec.launch(*args, **kwargs)
    assert set(gpus.launches) == {(0, "stream of GPU 0")}
    # Where that GPU is current nothing is switched; where it is not, the other is current again afterwards.
    assert (gpus.current, bool(gpus.switches)) == (before, before != 0)


def test_blocks_are_aligned_on_the_gpu_of_the_ids(gpus):
    moe_routing.align(torch.ones(5, 2, dtype=torch.int32, device="cuda"), 4, 16)
    assert gpus.launches == [(0, "stream of GPU 0")] * 2


class Stream:
    """What is given to it, in one list for all."""

    given: ClassVar[list[tuple[str, str]]] = []

    def __init__(self, name="beside"):
        self.name = name

    def wait_stream(self, other):
        self.given.append((self.name, f"waits for {other.name}"))

    def launch(self, what):
        self.given.append((self.name, what))


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_launched_beside_is_between_what_was_before_and_comes_after(monkeypatch, fails):
    current, names = Stream("current"), iter(("second", "third"))
    monkeypatch.setattr(Stream, "given", [])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(next(names)))
    beside: list[Any]
    stream: Any
    with pytest.raises(KeyError) if fails else nullcontext(), beside_current_stream(2) as beside:
        for stream in (current, *beside):
            stream.launch("one")
        if fails:
            raise KeyError
    current.launch("next")
    assert Stream.given == [
        ("second", "waits for current"),
        ("third", "waits for current"),
        ("current", "one"),
        ("second", "one"),
        ("third", "one"),
        ("current", "waits for second"),
        ("current", "waits for third"),
        ("current", "next"),
    ]


def test_streams_are_kept_by_thread_and_gpu_and_none_is_the_current_one(monkeypatch):
    device, current = 0, Stream("current")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream("new"))

    def streams(count):
        with beside_current_stream(count) as beside:
            return beside

    first, second = streams(2)
    assert streams(1) == [first]
    assert streams(2) == [first, second]
    current = first
    beside = streams(2)
    assert beside[0] is second
    assert beside[1] not in (first, second)
    device = 1
    assert streams(1)[0] not in (first, *beside)
    device, others = 0, []
    thread = Thread(target=lambda: others.extend(streams(1)))
    thread.start()
    thread.join()
    assert others[0] not in (first, *beside)


def test_a_tail_is_launched_beside_the_rest(gpus, monkeypatch):
    """On the GPU of the tensors, whichever is current."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: Stream(f"beside, on GPU {gpus.current}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(f"current of GPU {gpus.current}"))
    tile: dict[str, Any] = {"tile_m": 16, "tile_n": 16, "tile_k": 16}
    config = group_gemm.GroupGemmConfig(**tile, tails=(GemmConfig(**tile),))
    a, b = torch.ones(16 * 140, 16, device="cuda").half(), torch.ones(16, 16, device="cuda").half()
    group_gemm.group_gemm([a], [b], config=config)
    launched = [(gpu, stream.name) for gpu, stream in gpus.launches]
    assert launched == [(0, "current of GPU 0"), (0, "beside, on GPU 0")]


@pytest.mark.usefixtures("gpus")
def test_configurations_are_those_of_the_gpu_of_the_tensors(monkeypatch):
    asked = []
    choose_config = softmax.choose_config

    def choose(arch, **options):
        asked.append(arch)
        return choose_config(arch, **options)

    monkeypatch.setattr(softmax, "choose_config", choose)
    softmax.softmax(config=None, x=torch.ones(4, 8, device="cuda"))
    assert asked == ["sm_90"]


def test_an_error_leaves_the_current_gpu_as_it_was(gpus):
    before = gpus.current
    with pytest.raises(ValueError, match=r"^softmax: "):
        softmax.softmax(torch.ones(5, device="cuda"))
    assert gpus.current == before


@by_name
def test_every_operand_has_to_be_where_the_others_are(spec):
    """Also those that only some cases have."""
    case = min(
        spec.cases,
        key=lambda case: (
            -len(operands_of(arguments_of(spec, case, "meta"))),
            spec.work_of(case).bytes,
        ),
    )
    leaves, structure = tree_flatten(arguments_of(spec, case, "cpu"))
    operands = operands_of(leaves)
    for place in operands if len(operands) > 1 else ():
        moved = [leaf.to("meta") if i == place else leaf for i, leaf in enumerate(leaves)]
        args, kwargs = tree_unflatten(moved, structure)
        message = rf"^{spec.launch.__name__}: \S+ is on (meta|cpu), but \S+ is on (?!\1)(meta|cpu); move one$"
        with pytest.raises(ValueError, match=message):
            spec.launch(*args, **kwargs)


def operands_of(arguments):
    """Return the places of the tensors among the leaves."""
    return [i for i, leaf in enumerate(tree_leaves(arguments)) if isinstance(leaf, torch.Tensor)]
