"""`pytest.exit` in a launcher or a reference ends a check at any call, also of those that explain."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch

from pytest_cutile.correctness.check import KernelMismatch, check_kernel
from pytest_cutile.tile.tensors.make_tensor import make_tensor


@dataclass
class Counted:
    """A function that calls `pytest.exit` at one of its calls."""

    function: Callable[[torch.Tensor], torch.Tensor]
    last: int | None = None
    calls: int = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.last:
            pytest.exit(f"at call {self.calls}")
        return self.function(x)


def standardized(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()


def cancelling(x: torch.Tensor) -> torch.Tensor:
    """Compute the variance of squares; the explanation launches and calls the reference once more."""
    mean = x.mean(1, keepdim=True)
    return (x - mean) / (x.square().mean(1, keepdim=True) - mean.square() + 1e-5).sqrt()


def calls_of(launcher: Callable[[torch.Tensor], torch.Tensor], *, mutation_test: bool) -> Iterator[str]:
    """Check with `pytest.exit` at each call of launcher and reference in turn; yield what each raises."""
    x = make_tensor((8, 200), "float32", device="cpu", seed=1, dist="offset")

    def check(launch_last: int | None = None, reference_last: int | None = None) -> tuple[Counted, Counted]:
        fn, reference = Counted(launcher, launch_last), Counted(standardized, reference_last)
        check_kernel(fn, x, reference=reference, reduction=200, mutation_test=mutation_test)
        return fn, reference

    counts = [Counted(launcher), Counted(standardized)]
    try:
        check_kernel(counts[0], x, reference=counts[1], reduction=200, mutation_test=mutation_test)
    except KernelMismatch:
        assert not mutation_test
    for place, counted in enumerate(counts):
        assert counted.calls > 1
        for call in range(1, counted.calls + 1):
            lasts: list[int | None] = [None, None]
            lasts[place] = call
            with pytest.raises(pytest.exit.Exception) as stopped:
                check(*lasts)
            yield stopped.value.msg


@pytest.mark.parametrize(
    ("launcher", "mutation_test"), [(cancelling, False), (standardized, False), (standardized, True)]
)
def test_an_exit_at_any_call_ends_the_check(launcher, mutation_test):
    assert all(message.startswith("at call ") for message in calls_of(launcher, mutation_test=mutation_test))
