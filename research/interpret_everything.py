"""A pytest plugin that interprets every launch of a test run, of code that knows nothing of this project.

cuTile's own tests and samples are run with it, unmodified, on a machine with no GPU:

    git clone https://github.com/NVIDIA/cutile-python && cd cutile-python && git checkout 9c3ee3c
    pip install pytest-xdist pytest-benchmark scipy
    export PYTHONPATH=/path/to/pytest-cutile
    pytest -p research.interpret_everything -p no:cutile --benchmark-disable -k "not int64_index" test

`--interpret-arch sm_90` pretends another GPU than sm_100, `--interpret-relaxed` turns the checks off that a
GPU does not make. Python programs that the tests start are interpreted as well.
research/reports/interpreter-cutile-suite.md has the results.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ARCH = "PYTEST_CUTILE_INTERPRET_ARCH"
_RELAXED = "PYTEST_CUTILE_INTERPRET_RELAXED"
_POISON = "PYTEST_CUTILE_INTERPRET_POISON"
_STARTUP = "import research.interpret_everything as i\ni.interpret_program()\n"

_STATIC_SHAPES_SINCE = 2
"""Version of the calling convention."""

_FUNCTIONS = (
    *("sqrt", "rsqrt", "exp", "exp2", "log", "log2"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh"),
)
"""Functions of torch that tests hold results against, bit by bit."""

_active = contextlib.ExitStack()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("interpret everything")
    group.addoption("--interpret-arch", default="sm_100", help="architecture that is pretended (sm_100)")
    group.addoption(
        "--interpret-relaxed",
        action="store_true",
        help="do not check for races and uninitialized reads, which a GPU does not either",
    )
    group.addoption(
        "--interpret-poison",
        action="store_true",
        help="fill undetermined padding with NaN (cuTile's own attention kernel needs it to be a number)",
    )
    group.addoption("--interpret-timeout", type=int, default=120, help="seconds that a test may take (120)")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin to interpret, before any test module is imported."""
    options = early_config.known_args_namespace
    os.environ[_ARCH] = options.interpret_arch
    os.environ[_RELAXED] = "1" if options.interpret_relaxed else ""
    os.environ[_POISON] = "1" if options.interpret_poison else ""
    _for_programs()
    interpret_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let a test translate its kernels itself, some count that; stop one that takes too long."""
    from pytest_cutile.tile.compiler.export import _exported

    _exported.clear()
    seconds = item.config.getoption("--interpret-timeout")

    def stop(*_: Any) -> None:
        pytest.fail(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def interpret_program() -> None:
    """Interpret what a Python program launches that a test has started."""
    script = next((part for part in sys.orig_argv[1:] if not part.startswith("-")), "")
    if script.endswith(".py"):
        interpret_all()


def interpret_all() -> None:
    """Interpret every launch from now on until the process ends."""
    import torch

    from pytest_cutile.interpreter import Options, interpret
    from pytest_cutile.tile.compiler.trace.cuda_api import replacements
    from pytest_cutile.tile.compiler.trace.launches import Recorder
    from pytest_cutile.tile.compiler.trace.patching import Replacements

    arch = os.environ[_ARCH]
    strict = not os.environ[_RELAXED]
    _answer_for_driver(arch)
    for owner, name, value in replacements(arch):
        if owner is torch.cuda:  # test modules ask while they are imported, too
            setattr(owner, name, value)
    # Nothing will be restored, so modules may keep what they get, and make tensors as they are imported.
    Replacements._import = _import_as_it_is  # type: ignore[method-assign]  # noqa: SLF001
    checks = Options(check_races=strict, check_uninitialized=strict, poison_padding=bool(os.environ[_POISON]))
    launch = Recorder.launch

    def launch_like_cutile(self: Recorder, *args: Any, **kwargs: Any) -> None:
        with _cutile_errors():
            launch(self, *args, **kwargs)

    Recorder.launch = launch_like_cutile  # type: ignore[method-assign]
    _active.enter_context(interpret(arch, checks))
    _fill_gaps_of_cpu()
    atexit.register(_active.close)


def _fill_gaps_of_cpu() -> None:
    """Have torch do on the CPU what tests take for granted on CUDA."""
    import torch

    from pytest_cutile.tile.interpreter.ops.rounding import round_to_tf32

    mm, matmul, absolute = torch.mm, torch.Tensor.__matmul__, torch.Tensor.__abs__

    def exact_mm(lhs: Any, rhs: Any, *, out_dtype: Any = None, **kwargs: Any) -> Any:
        """Multiply; the CPU knows no `out_dtype`."""
        return mm(lhs, rhs, **kwargs) if out_dtype is None else mm(lhs.to(out_dtype), rhs.to(out_dtype))

    def rounded_matmul(lhs: Any, rhs: Any) -> Any:
        """Multiply narrow floats in float64: on the CPU, the order of float16's sums is the processor's."""
        if lhs.dtype != rhs.dtype or lhs.dtype not in {torch.float16, torch.bfloat16, torch.float32}:
            return matmul(lhs, rhs)
        if lhs.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
            lhs, rhs = round_to_tf32(lhs), round_to_tf32(rhs)
        return matmul(lhs.double(), rhs.double()).to(lhs.dtype)

    def abs_of_any(x: Any) -> Any:
        """Return absolute values; the CPU knows none of bool."""
        return x.clone() if x.dtype == torch.bool else absolute(x)

    def rounded(function: Any) -> Any:
        """Compute in float64 and round: of float32, the last bits are those of the CPU's kind."""

        def compute(x: Any, **kwargs: Any) -> Any:
            if kwargs or x.dtype == torch.float64 or x.is_complex():
                return function(x, **kwargs)
            return function(x.double()).to(x.dtype if x.is_floating_point() else torch.get_default_dtype())

        return compute

    torch.mm = exact_mm
    torch.Tensor.__matmul__ = rounded_matmul
    torch.Tensor.__abs__ = abs_of_any
    for name in _FUNCTIONS:
        setattr(torch, name, rounded(getattr(torch, name)))


def _answer_for_driver(arch: str) -> None:
    """Answer what cuda-tile itself asks the driver."""
    from cuda.tile import _cext, _compile, _execution
    from cuda.tile.compilation import KernelSignature

    from pytest_cutile.tile.compiler.signature import derive_signature
    from pytest_cutile.words.platforms.architectures import capability

    def get_compute_capability(device_id: int = 0) -> tuple[int, int]:
        if device_id:
            raise RuntimeError(f"there is no device {device_id}")
        return capability(arch)

    def from_kernel_args(
        kernel: Any, kernel_args: Any, calling_convention: Any, *, symbol: str | None = None
    ) -> KernelSignature:
        parameters = derive_signature(kernel, tuple(kernel_args)).parameters
        if calling_convention.version < _STATIC_SHAPES_SINCE:
            parameters = [_without_static_shape(parameter) for parameter in parameters]
        signature = KernelSignature(parameters, calling_convention, symbol)
        if symbol is None:
            signature = signature.with_mangled_symbol(kernel._annotated_function.pyfunc.__name__)  # noqa: SLF001
        return signature

    for module in (_cext, _compile, _execution):
        module.get_compute_capability = get_compute_capability
    KernelSignature.from_kernel_args = staticmethod(from_kernel_args)


def _without_static_shape(parameter: Any) -> Any:
    """Return a parameter's constraint as launches of the first calling convention have it."""
    if hasattr(parameter, "shape_constant"):
        return dataclasses.replace(parameter, shape_constant=(None,) * parameter.ndim)
    if hasattr(parameter, "element"):
        return dataclasses.replace(parameter, element=_without_static_shape(parameter.element))
    return parameter


def _import_as_it_is(replacements: Any, name: str, how: Any) -> Any:
    return replacements._find_and_load(name, how)  # noqa: SLF001


@contextlib.contextmanager
def _cutile_errors() -> Iterator[None]:
    """Raise what cuda-tile raised, which its tests expect, rather than what this project makes of it."""
    from pytest_cutile.tile.compiler.export import CompileError

    try:
        yield
    except CompileError as error:
        raise (error.__context__ or error) from None


def _for_programs() -> None:
    """Have the Python programs that tests start begin by interpreting."""
    if "interpret_everything_" in os.environ.get("PYTHONPATH", ""):
        return  # a worker of pytest-xdist: it has this from its controller
    folder = Path(tempfile.mkdtemp(prefix="interpret_everything_"))
    (folder / "sitecustomize.py").write_text(_STARTUP, encoding="utf-8")
    root = Path(__file__).resolve().parent.parent
    paths = [str(folder), str(root), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
