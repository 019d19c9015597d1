"""The suite of the toy kernel, for the tuner and the comparison."""

from pytest_cutile import Case
from tests.tools import toy_kernel as MODULE  # noqa: N812
from tests.tools.toy_kernel import LAST, ToyConfig
from tools.suite._peers import InPlace

CASES = (*MODULE.SPEC.cases, Case(name="fp16-96", params={"n": 96}))


TILEGYM = CASES[:1]
PEERS = ("tilegym", "torch", "eager", "other", "compile", "unfit", "copy", "uncaptured", "long", "missed")


def configs(arch, *, n):
    del arch
    yield ToyConfig(us=120.0)
    yield ToyConfig(us=80.0)
    yield ToyConfig(us=80.0)
    yield ToyConfig(us=60.0, fault="imprecise")
    for fault in ("wrong", "raises", "dies"):
        yield ToyConfig(us=50.0, fault=fault)
    yield ToyConfig(us=90.0 if n == 64 else 70.0, fault="fine")


def peers(args, params):
    x = args["x"]
    del params

    def taking(us, factor=2):
        def launch():
            LAST["us"] = us
            return x * factor

        return launch

    def on_stream_only():
        LAST["us"] = 180.0
        LAST["captured"] = False
        return x * 2

    def missing():
        raise ModuleNotFoundError("No module named 'tilegym'")

    def in_place(x):
        LAST["us"] = 140.0
        return x.mul_(2)

    return {
        "tilegym": taking(150.0),
        "in_place": InPlace(in_place, x),
        "torch": taking(132.0),
        "eager": taking(1e-6),
        "other": taking(110.0, factor=4),
        "compile": missing,
        "unfit": "computes something else",
        "copy": taking(100.0),
        "uncaptured": on_stream_only,
        "long": taking(6000.0),
    }
