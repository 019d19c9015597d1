"""What a GPU refuses is refused where there is none: CPU tensors among others, and streams that are none."""

import threading
import types

import cuda.tile as ct
import pytest
import torch

from pytest_cutile.tile.compiler.trace.launches import pretend_gpu

ARCH = "sm_90"


@ct.kernel
def add_kernel(x, y, size: ct.Constant[int]):
    ct.store(y, (0,), ct.load(x, (0,), (size,)) + 1)


def on_gpu(*shape):
    return torch.ones(shape, device="cuda")


def launch(*tensors, stream=None):
    stream = torch.cuda.current_stream() if stream is None else stream
    ct.launch(stream, (1,), add_kernel, (*tensors, 8))


def stream_class(package, name):
    return type(name, (), {"__module__": f"{package}.streams"})()


@pytest.mark.parametrize(
    "stream", [0, 140234, stream_class("cupy", "Stream"), stream_class("cuda", "CUstream")]
)
def test_streams_are_taken(stream):
    with pretend_gpu(ARCH):
        launch(on_gpu(8), on_gpu(8), stream=stream)
        launch(on_gpu(8), on_gpu(8), stream=torch.cuda.Stream())


@pytest.mark.parametrize(
    "stream",
    ["x", 1.5, torch.cpu.current_stream(), types.SimpleNamespace(cuda_stream=0), torch.device("cpu")],
    ids=["str", "float", "cpu", "namespace", "device"],
)
def test_what_is_no_stream_is_refused(stream):
    with pretend_gpu(ARCH), pytest.raises(TypeError, match="Unsupported stream type"):
        launch(on_gpu(8), on_gpu(8), stream=stream)


def test_no_stream_is_refused():
    with pretend_gpu(ARCH), pytest.raises(TypeError, match="Stream is required, got None"):
        ct.launch(None, (1,), add_kernel, (on_gpu(8), on_gpu(8), 8))


@pytest.mark.parametrize("backing", ["meta", "cpu"])
def test_an_argument_on_the_cpu_is_refused(backing):
    with pretend_gpu(ARCH, backing) as recorder:
        with pytest.raises(
            TypeError, match=r"argument #1: .* not on a CUDA device: .* shape \[8\] is on the CPU"
        ):
            launch(on_gpu(8), torch.ones(8))
        with pytest.raises(TypeError, match="argument #0"):
            launch(on_gpu(8).cpu() if backing == "cpu" else torch.ones(8), on_gpu(8))
        with pytest.raises(TypeError, match="argument #0"):
            launch(torch.ones(8), torch.ones(8))
        launch(on_gpu(8), torch.ones(8).cuda())
    assert len(recorder.launches) == 1


def test_all_arguments_may_be_on_the_cpu_where_somebody_says_so():
    with pretend_gpu(ARCH, "cpu", takes_cpu=True):
        launch(torch.ones(8), torch.ones(8))
        with pytest.raises(TypeError, match="argument #1"):
            launch(on_gpu(8), torch.ones(8))


def test_tensors_of_another_thread_do_not_say_where_they_are():
    with pretend_gpu(ARCH, "cpu") as recorder:
        x = on_gpu(8)
        thread = threading.Thread(target=lambda: launch(x, torch.empty_like(x), stream=0))
        thread.start()
        thread.join()
    assert len(recorder.launches) == 1


REFUSED = [
    lambda x, c: x + c,
    lambda x, c: c + x,
    lambda x, c: c * x.sum(),
    lambda x, c: x.add_(c),
    torch.maximum,
    lambda x, c: x == c,
    lambda x, c: torch.where(x > 0, x, c),
    lambda x, c: torch.cat([x, c]),
    lambda x, c: torch.stack([x, c]),
    lambda x, c: x @ c,
    lambda x, c: torch.nn.functional.embedding(c.long(), x[:, None]),
    lambda x, c: x.gather(0, c.long()),
]


@pytest.mark.parametrize("compute", REFUSED)
def test_tensors_on_two_devices_are_refused(compute):
    with pretend_gpu(ARCH, "cpu"), pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        compute(on_gpu(8), torch.ones(8))


LEGAL = [
    lambda x, c: x + c.sum(),
    lambda x, _: torch.tensor(2.0) * x,
    lambda x, _: torch.where(x > 0, x, torch.tensor(0.0)),
    lambda x, _: x.clamp(min=torch.tensor(0.5)),
    lambda x, c: x[c.long()],
    lambda x, c: x[c > 0],
    lambda x, c: x.copy_(c),
    lambda x, c: x.__setitem__(slice(0, 4), c[:4]),
    lambda x, c: x.__setitem__(0, c[0]),
    lambda x, c: x.type_as(c),
    lambda x, c: x.cpu() + c,
    lambda x, c: x + c.to(x.device),
    lambda x, c: x + c.to(x),
    lambda x, _: torch.cat([x, torch.empty(0)]),
    lambda x, _: x.tensor_split(torch.tensor([3])),
    lambda x, _: x.masked_fill(x > 0, torch.tensor(1.0)),
    lambda x, c: x.new_tensor(c.tolist()) + x,
    lambda x, c: torch.as_tensor(c, device="cuda") + x,
]


@pytest.mark.parametrize("compute", LEGAL)
def test_what_a_gpu_takes_is_taken(compute):
    with pretend_gpu(ARCH, "cpu"):
        compute(on_gpu(8), torch.zeros(8))
