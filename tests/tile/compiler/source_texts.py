"""A file of kernels and one of their helpers, for tests that change them: kernels must be in real files."""

HELPERS = """\
import cuda.tile as ct

SCALE = 3
UNREAD = 5


def scaled(x):
    return x * SCALE


def twice(x):
    return scaled(x) + scaled(x)


def shifted(x, by=2):
    return x + by


def tile_of(bits, base):
    return base * 16 // bits


@ct.function
def marked(x):
    return x - 1


def unread(x):
    return x
"""
KERNELS = '''\
import enum
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import cuda.tile as ct
import numpy
import torch

from . import helpers
from .helpers import marked, tile_of
from .helpers import twice as doubled


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


class Config:
    TILE = 16
    STAGES = 3

    @staticmethod
    def pad(n):
        return n + 0


@dataclass(frozen=True)
class Tuning:
    tile: int
    unroll: int = 1

    def area(self):
        return self.tile * self.tile


NARROW = ct.float16
FOREIGN = torch.float32
MODE = Mode.FAST
SIZES = (16, 32)
NAMES = frozenset({"alpha", "beta", "gamma", "delta"})
EPSILON = 1e-6
FLAG = True
LABEL = "plain"
TABLE = {"a": 1, "b": 2}
TUNING = Tuning(16)
AREA = Tuning(8)
HALF = Fraction(1, 2)
COUNT = numpy.int32(7)
OPAQUE = object()
TILE_FOR = partial(tile_of, 16)
PICK = lambda n: n + 1  # noqa: E731


def make(power):
    offset = 4

    # Built in a function, and closing over its variables.
    @ct.kernel(occupancy=ct.ByTarget(sm_90=2, sm_100=4, default=1), opt_level=2)
    def closing(x, n: ct.Constant[int]):
        value = helpers.scaled(ct.load(x, (0,), (n,))) + offset
        for _ in ct.static_iter(range(power)):
            value = value * 2
        ct.store(x, (0,), value)

    return closing


@ct.kernel(occupancy=2)
def kernel(x, y, n: ct.Constant[int], factor):
    """Say what it does."""
    tile: int = Config.TILE  # of a class
    a = ct.load(x, (0,), (n,))  # [n]
    b = helpers.shifted(doubled(marked(a)))
    if ct.static_eval(MODE is Mode.FAST and FLAG):
        b = b * ct.static_eval(TILE_FOR(SIZES[0]) + PICK(TUNING.tile) + Config.pad(0))
    b = b + ct.static_eval(len(NAMES) + len(LABEL) + TABLE["a"] + AREA.area() + int(HALF * 2) + int(COUNT))
    b = b + ct.static_eval(OPAQUE is None)
    b = b + tuple(n + 1 for n in ct.static_iter(range(2)))[0]
    b = (b * EPSILON).astype(NARROW).astype(FOREIGN) * factor
    ct.store(y, (0,), (b * tile).astype(y.dtype))


def run(kernel=kernel):
    x = torch.empty((64, 128), dtype=torch.float32, device="cuda")[0]
    ct.launch(torch.cuda.current_stream(), (1,), kernel, (x, x, 64, 1.5))


def run_closing(power=2):
    x = torch.empty(128, dtype=torch.float32, device="cuda")
    ct.launch(torch.cuda.current_stream(), (1,), make(power), (x, 64))
'''
