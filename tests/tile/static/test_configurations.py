"""What is said of configurations of a launcher that tunes before any is timed."""

from msgspec.structs import replace

from pytest_cutile.tile.static.configurations import drawbacks_of
from pytest_cutile.tile.static.facts import LaunchFacts
from tests.tile.static.test_rules import LAUNCH, MARGIN


def moving(gigabytes: float, **fields) -> list[LaunchFacts]:
    return [replace(LAUNCH, executed={"touched_bytes": int(gigabytes * 1e9)}, **fields)]


def drawbacks(**configurations: list[LaunchFacts]) -> list[str]:
    return drawbacks_of(configurations, arch="sm_90", margin=MARGIN)


def test_a_slower_one_is_compared_with_the_fastest():
    [line] = drawbacks(a=moving(4.8), b=moving(2.4), c=moving(2.5))
    assert line == "a: predicted 2.0x slower than b (502 us): memory"


def test_one_that_spills_is_named_even_if_it_is_the_fastest():
    lines = drawbacks(a=moving(2.4, stack_bytes=8, local_bytes=56), b=moving(4.8, stack_bytes=16))
    assert lines[0] == "a: spills 64 bytes per thread"
    assert lines[1] == "b: spills 16 bytes per thread; predicted 2.0x slower than a (502 us): memory"


def test_what_is_not_known_speaks_against_nothing():
    assert drawbacks(a=[replace(LAUNCH, stack_bytes=None)], b=moving(2.4)) == []
    assert drawbacks() == []
