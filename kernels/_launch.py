"""Host code of every launcher: architecture and size of the current GPU, hints, argument checks."""

from __future__ import annotations

import operator
import sys
import threading
from collections import ChainMap, defaultdict
from contextlib import contextmanager
from functools import cache, wraps
from numbers import Real
from typing import TYPE_CHECKING, Any, ParamSpec, SupportsFloat, SupportsIndex, TypeVar

from kernels._dtypes import MIN_ARCH, generation
from pytest_cutile import nearest_architecture, related_architectures

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import torch

ConfigT = TypeVar("ConfigT")
ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")

ARCHITECTURES = related_architectures()
"""The keys of a table that holds the same for all of them, so that each can get an entry of its own."""


def on_its_gpu(launcher: Callable[ParamsT, ResultT]) -> Callable[ParamsT, ResultT]:
    """Make the GPU of the first tensor among the arguments the current one while `launcher` runs.

    Then that GPU is the one whose architecture, size and current stream the launcher gets. A stream of that
    GPU alone would not do: the default one is number 0 on every GPU, by which the driver means the current
    GPU's (CUDA driver API, cuStreamGetCtx). Whether the other tensors are there, too, each launcher checks.
    """

    @wraps(launcher)
    def launch(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        import torch

        for argument in (*args, *kwargs.values()):
            # Groups come in lists.
            first = argument[0] if isinstance(argument, (list, tuple)) and argument else argument
            if isinstance(first, torch.Tensor):
                if first.is_cuda and first.device.index != torch.cuda.current_device():
                    with torch.cuda.device(first.device):
                        return launcher(*args, **kwargs)
                break
        return launcher(*args, **kwargs)

    return launch


def find_arch(kernel: str, tensor: torch.Tensor, *tables: Mapping[str, object]) -> str:
    """Return the architecture, e.g. `"sm_90"`, whose configurations the current GPU takes.

    That is the GPU's own if a table has it, else its nearest relative that a table has. An architecture
    without such a relative is returned as it is: kernels have defaults for it.

    Args:
        kernel: The kernel's name, for the message.
        tensor: An argument, whose dtype the others have; of several dtypes, the narrowest.
        tables: The kernel's configurations by architecture.

    Raises:
        TypeError: The dtype of `tensor` is not compiled for so old an architecture.
        RuntimeError: There is no GPU, and kernels are not interpreted.
    """
    import torch

    try:
        arch = "sm_{}{}".format(*torch.cuda.get_device_capability())
    except (AssertionError, RuntimeError) as error:  # the former where torch is built without CUDA
        raise RuntimeError(
            f"{kernel}: there is no GPU ({error}); without one, kernels run within "
            "pytest_cutile.interpreter.interpret(arch)"
        ) from error
    least = MIN_ARCH.get(str(tensor.dtype).removeprefix("torch."))
    if least is not None and generation(arch) < generation(least):
        raise TypeError(
            f"{kernel}: {tensor.dtype} is compiled for {least} and newer, and this GPU is {arch}; convert it"
        )
    return nearest_architecture(arch, ChainMap(*tables)) or arch  # type: ignore[arg-type]


def count_sms() -> int:
    """Return how many streaming multiprocessors the current GPU has (132 on an H200)."""
    import torch

    return torch.cuda.get_device_properties().multi_processor_count


class _Kept(threading.local):
    """Streams that a thread keeps, by their class (another one where a GPU is pretended) and their GPU."""

    def __init__(self) -> None:
        self.streams: defaultdict[tuple[type, int], list[torch.cuda.Stream]] = defaultdict(list)


_KEPT = _Kept()


@contextmanager
def beside_current_stream(count: int) -> Iterator[list[torch.cuda.Stream]]:
    """Yield `count` streams of the current GPU: launches on them run beside those on the current one.

    What they are given waits for what the current stream was given before, and what the current stream is
    given afterwards waits for all of them; so memory is safe to free and to use again, and CUDA graphs
    capture it.
    """
    import torch

    stream = torch.cuda.current_stream()
    # This thread's own: PyTorch hands out the 32 of a GPU in turn, so that a new one would now and then be
    # one that other work is on, for which the current stream would wait then.
    kept = _KEPT.streams[torch.cuda.Stream, torch.cuda.current_device()]
    while len(beside := [other for other in kept if other != stream][:count]) < count:
        kept.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    for other in beside:
        other.wait_stream(stream)
    try:
        yield beside
    finally:
        for other in beside:
            stream.wait_stream(other)


HINTS = ("occupancy", "num_worker_warps", "num_ctas", "opt_level")
"""What a configuration may hold of the compiler's hints; None leaves one to the compiler."""


def with_hints(kernel: Any, config: object) -> Any:
    """Return `kernel` with the hints among `config`'s fields; the same object for the same hints.

    Each object has a JIT cache of its own.
    """
    return replace_hints(kernel, **{name: getattr(config, name) for name in HINTS if hasattr(config, name)})


@cache
def replace_hints(kernel: Any, **hints: int | None) -> Any:
    """Return `kernel` with these hints, the same object each time."""
    return kernel.replace_hints(**hints)


def next_power_of_2(n: int) -> int:
    """Return the smallest power of two that is at least `n`: every side of a tile has to be one."""
    return 1 << (n - 1).bit_length()


MIN_PIECE = 256
"""Shortest piece of a row that is preferred to a tile that sticks out of the row."""


def cut_row(n: int) -> tuple[int, int]:
    """Return how long the pieces are that hold a row of `n` elements in registers, and how many there are.

    A tile's sides are powers of two, and few models' widths are: 3072 in a tile of 4096 would leave a quarter
    of the registers idle and, worse, be loaded with checks (`load_tile` says what they cost). So a row is cut
    into pieces as long as the largest power of two that divides it, three of 1024 here. Only where those
    would be shorter than `MIN_PIECE` is it one piece that sticks out.
    """
    divisor = n & -n
    return (divisor, n // divisor) if divisor >= MIN_PIECE else (next_power_of_2(n), 1)


def choose_by_width(configs: Sequence[tuple[float, ConfigT]], width: float) -> ConfigT:
    """Return the first configuration of `configs` whose limit is at least `width`; the last limit is inf."""
    return next(config for limit, config in configs if width <= limit)


MAX_GRID = (2**24 - 1, 65535, 65535)
"""Blocks along each axis of a grid, at most.

`cuda.tile.launch` refuses more than 2^24 - 1 along any axis (cuda-tile 1.7.0: "Grid[0] exceeds 24-bit
limit"), and CUDA more than 65535 along the second and third (CUDA C++ Programming Guide, technical
specifications).
"""


def line_grid(kernel: str, blocks: int, counted: str, remedy: str) -> tuple[tuple[int, ...], int]:
    """Return a grid of `blocks` blocks in a line, and the axis that they are on: `ct.bid` of it counts them.

    That is the second axis while it takes as many. On the first, `ct.bid` is an integer division by the size
    of a cluster, 20 instructions before the first load; on the second it is a multiplication (tileiras
    13.4.92, sm_90). H200, 2026-11-23: `dropout` takes 1 to 2 % less time; of `swiglu`, `rms_norm`, `softmax`,
    `rope` and products none gains more than the noise.

    Raises:
        ValueError: There are too many, in the words of `check_grid`.
    """
    grid = check_grid(kernel, (blocks,), (counted, remedy))
    return (grid, 0) if blocks > MAX_GRID[1] else ((1, blocks), 1)


def check_grid(kernel: str, grid: tuple[int, ...], *axes: tuple[str, str]) -> tuple[int, ...]:
    """Return `grid`, if one launch takes as many blocks along each of its axes.

    Args:
        kernel: The kernel's name, for the message.
        grid: Blocks along each axis.
        axes: For each axis, what its blocks are to the kernel's user, and what to do where they are too many,
            e.g. `("batches", "split the batch")`.

    Raises:
        ValueError: There are too many.
    """
    for size, limit, (counted, remedy) in zip(grid, MAX_GRID, axes, strict=False):
        if size > limit:
            raise ValueError(
                f"{kernel}: {size} {counted} are too many for one launch, "
                f"which takes at most {limit}; {remedy}"
            )
    return grid


def check_tiles(kernel: str, tiles: int, blocks: int, counted: str, remedy: str) -> tuple[int, ...]:
    """Return the grid of `blocks` blocks that take `tiles` tiles, one each or in turn.

    At most as many tiles as a grid may have blocks, also where fewer blocks take them: that is what
    `_division.divide` is exact for.

    Args:
        kernel: The kernel's name, for the message.
        tiles: How many there are.
        blocks: How many take them: fewer take them in turn.
        counted: What the tiles are to the kernel's user.
        remedy: What to do where they are too many.

    Raises:
        ValueError: There are too many.
    """
    check_grid(kernel, (tiles,), (counted, remedy))
    return (blocks,)


def check_tensors(
    kernel: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    dtypes: Collection[str],
) -> None:
    """Check that `tensors` share one device and one of `dtypes`.

    Args:
        kernel: The kernel's name, for the message.
        tensors: The arguments by the names their user knows.
        dtypes: Names of the dtypes that the kernel takes, e.g. `"float16"`.

    Raises:
        TypeError: An argument is not a tensor, has another dtype than the first, or one outside `dtypes`.
        ValueError: An argument lives on another device than the first, or its memory does not hold what it
            stands for: it is sparse, or negated by a flag, as the imaginary part of a conjugate is.
    """
    import torch

    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{kernel}: {name} must be a torch.Tensor, got {type(tensor).__name__}")
        if tensor.layout != torch.strided:
            raise ValueError(f"{kernel}: {name} must be dense, got {tensor.layout}; call to_dense()")
        if tensor.is_neg():
            raise ValueError(f"{kernel}: {name} is negated by a flag of PyTorch; call resolve_neg()")
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if str(tensor.dtype).removeprefix("torch.") not in dtypes:
            raise TypeError(f"{kernel}: {name} has dtype {tensor.dtype}; supported are {', '.join(dtypes)}")
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{kernel}: {name} has dtype {tensor.dtype}, but {first_name} has {first.dtype}; convert one"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{kernel}: {name} is on {tensor.device}, but {first_name} is on {first.device}; move one"
            )


def check_config(kernel: str, config: object, expected: type) -> None:
    """Check that `config` is None or an instance of `expected`.

    Raises:
        TypeError: It is another kernel's configuration, or no configuration.
    """
    if config is not None and not isinstance(config, expected):
        raise TypeError(f"{kernel}: config must be a {expected.__name__}, got {type(config).__name__}")


def check_bool(kernel: str, name: str, value: object) -> bool:
    """Return `value` as a bool; NumPy's bools are fine.

    Raises:
        TypeError: It is no bool: "no" and 2 hide a mistake, and to read a tensor would wait for the GPU.
    """
    if isinstance(value, bool):
        return value
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.bool_):
        raise TypeError(f"{kernel}: {name} must be a bool, got {type(value).__name__}")
    return bool(value)


def check_integer(kernel: str, name: str, value: SupportsIndex) -> int:
    """Return `value` as an int; NumPy's integers are fine.

    Raises:
        TypeError: It is no integer: a bool hides a mistake, and to read a tensor would wait for the GPU.
    """
    import torch

    if isinstance(value, (bool, torch.Tensor)) or not hasattr(value, "__index__"):
        raise TypeError(f"{kernel}: {name} must be an integer, got {type(value).__name__}")
    return operator.index(value)


def check_power_of_2(owner: str, name: str, value: int, *, least: int = 1) -> None:
    """Check that `value`, an integer, is a power of two: every side of a tile has to be one.

    Raises:
        ValueError: It is none, or less than `least`.
    """
    if value < least or value & (value - 1):
        bound = f" of at least {least}" if least > 1 else ""
        raise ValueError(f"{owner}: {name} must be a power of two{bound}, got {value}")


def check_number(kernel: str, name: str, value: SupportsFloat) -> float:
    """Return `value` as a float; integers and NumPy's numbers are fine.

    Raises:
        TypeError: It is no real number: a bool hides a mistake, and to read a tensor would wait for the GPU.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{kernel}: {name} must be a number, got {type(value).__name__}")
    return float(value)
