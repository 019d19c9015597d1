"""The studies of attention, run as a whole with a pretended timer on tiny sizes."""

import difflib
import inspect
import json
import re
import sys
from xml.etree import ElementTree as ET

import cuda.tile as ct
import pytest
import torch

from kernels import fmha
from pytest_cutile.interpreter import interpret
from pytest_cutile.words.timing import Skipped
from research.published_figures import fmha_work
from studies.fmha_ladder import _declare
from studies.fmha_ladder import main as ladder
from studies.fmha_ladder.steps import STEPS, step
from studies.fmha_scaling import main as scaling
from studies.running.peers import CAUSAL_SDPA, missing
from studies.running.run import run_study
from tests.studies.pretended import PretendedTimer, on_the_cpu

MOST_LINES = 20
"""Lines that a step may add to, or take from, the one that it was made from."""


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Let each case be one head of a few keys."""
    monkeypatch.setattr(_declare, "B", 1)
    monkeypatch.setattr(_declare, "H", 1)
    monkeypatch.setattr(ladder, "LENGTH", 64)
    monkeypatch.setattr(scaling, "LENGTHS", (32, 64))
    monkeypatch.setattr(scaling, "QUICK_LENGTHS", (64,))


def code_of(number):
    """Return the lines of a step without its docstring, wherever they are indented."""
    text = inspect.getsource(sys.modules[step(number).spec.launch.__module__])
    return [line.strip() for line in re.sub(r'^""".*?"""', "", text, count=1, flags=re.DOTALL).split("\n")]


@pytest.mark.parametrize("own", STEPS[1:-1], ids=lambda own: own.contender.name)
def test_a_step_differs_from_the_one_before_by_its_idea_alone(own):
    changes = list(difflib.ndiff(code_of(own.before), code_of(own.number)))
    for sign in "+-":
        assert 0 < sum(line.startswith(sign) for line in changes) <= MOST_LINES


@pytest.mark.parametrize(("number", "figure"), ladder.PUBLISHED.items())
def test_a_published_step_is_a_baseline_of_its_kernel(number, figure):
    spec = step(number).spec
    (timed,) = [case for case in spec.cases if case.speed]
    assert figure.key == f"{spec.name}[{timed.name}]"
    assert spec.work_of(timed) == fmha_work(figure.length)


def ladder_times():
    """Return a time for each step: each is a tenth faster than the one that it was made from."""
    times: dict[int, float] = {0: 110.0}
    for own in STEPS:
        times[own.number] = times[own.before] / 1.1
    return {own.contender.name: times[own.number] for own in STEPS}


def svg_titles(file):
    assert ET.fromstring(file.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
    return re.findall(r"<title>(.*?)</title>", file.read_text())


def test_the_ladder_tells_each_gain_beside_the_published_one(tmp_path):
    run_study(on_the_cpu(ladder.STUDY), PretendedTimer(ladder_times()), tmp_path)
    text = (tmp_path / "fmha_ladder.md").read_text()
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in table(text)}
    assert rows["2 exp2"] == ["1", "0.091", "0.0", "1.100", "0.114", "0.0", "1.100", "2.07", "66.5", "1.059"]
    assert rows["5 occupancy"][-3:] == ["1.73", "79.5", "1.195"]
    assert rows["12 persistent blocks"][0] == "10"
    assert rows["12 persistent blocks"][3] == "1.100"
    assert rows["13 kernels.fmha"][-3:] == ["-", "-", "-"]
    assert len(rows) == len(STEPS)
    assert "playbook for DGX Spark" in text
    assert "| DGX Spark at 2048, published, ms |" in text
    titles = svg_titles(tmp_path / "fmha_ladder.svg")
    assert "3 load order: 1.21" in titles
    assert "6 approximate division: 1.291" in titles  # as published: 81.1 of 62.8 TFLOPS
    assert len(titles) == 4 * len(STEPS) + len(ladder.PUBLISHED)


def test_the_ladder_draws_sustained_times_without_those_of_step_1(tmp_path):
    class NotSustained(PretendedTimer):
        def time_sustained(self, launches, *, always=False):
            if "1 basic" in {launch.launch.func.__name__ for copies in launches for launch in copies}:
                return Skipped(reason="not limited by power")
            return super().time_sustained(launches, always=always)

    run_study(on_the_cpu(ladder.STUDY), NotSustained(ladder_times()), tmp_path)
    drawn = (tmp_path / "fmha_ladder.svg").read_text()
    assert drawn.count(">sustained</tspan>") == 1  # TFLOPS alone
    text = (tmp_path / "fmha_ladder.md").read_text()
    assert "Step 1 has no sustained time, so the second plot has no sustained line." in text


def table(text):
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def scaling_times():
    names = [each.name for each in scaling.CONTENDERS]
    return {name: 100.0 + 10 * place for place, name in enumerate(names)} | {"13 kernels.fmha": 50.0}


def test_the_scaling_says_by_length_what_is_fastest_in_the_form_of_nvidias_script(tmp_path):
    run_study(on_the_cpu(scaling.STUDY), PretendedTimer(scaling_times()), tmp_path)
    document = json.loads((tmp_path / "fmha_scaling_results.json").read_text())
    assert {"batch", "n_heads", "head_dim", "tile_m", "tile_n", "occupancy", "num_ctas", "platform"} == {
        *document["config"]
    }
    first, second = document["results"]
    assert (first["seq_len"], second["seq_len"]) == (32, 64)
    assert [each["step"] for each in first["steps"]] == [0, *scaling.STEPS]
    assert first["steps"][0]["speedup_vs_baseline"] == 1.0
    assert first["steps"][1]["latency_ms"] == pytest.approx(0.11)
    assert first["steps"][1]["speedup_vs_baseline"] == pytest.approx(100 / 110)
    assert (first["best_step"], first["best_speedup"]) == (13, pytest.approx(2.0))
    assert first["tilegym_latency_ms"] is None  # it is not installed here
    text = (tmp_path / "fmha_scaling_results.md").read_text()
    assert "Not there: TileGym: it is not installed." in text
    assert "13 kernels.fmha (2.000)" in text
    assert "| 8192 | 88.9 | 1159 |" in text  # as published
    titles = svg_titles(tmp_path / "fmha_scaling.svg")
    assert titles.count("13 kernels.fmha, 64: 2") == 2  # in both regimes
    assert len(titles) == 2 * 2 * 2 * 5  # lengths, regimes, TFLOPS and speed-up, contenders without TileGym


@pytest.mark.slow
def test_the_kernels_themselves_are_checked_before_they_are_timed(tmp_path):
    timer = PretendedTimer({"launch": 100.0, "causal_attention": 90.0})
    with interpret(arch="sm_90") as run:
        record = run_study(scaling.STUDY, timer, tmp_path, quick=True)
    assert not record.errors
    assert [row.contender for row in record.rows] == [each.name for each in scaling.CONTENDERS[:-1]]
    assert {launch.kernel for launch in run.launches} == {"attention_kernel", "fmha_kernel"}


def test_where_a_launch_is_too_long_for_a_burst_all_are_compared_sustained(tmp_path):
    timer = PretendedTimer(scaling_times() | {"1 basic": 6000.0})
    record = run_study(on_the_cpu(scaling.STUDY), timer, tmp_path)
    assert scaling.common_regime(record, 32) == "sustained"
    document = json.loads((tmp_path / "fmha_scaling_results.json").read_text())
    basic = document["results"][0]["steps"][1]
    assert (basic["latency_ms"], basic["speedup_vs_baseline"]) == (pytest.approx(7.5), pytest.approx(1 / 60))
    assert document["results"][0]["steps"][0]["latency_ms"] == pytest.approx(0.125)


def test_pytorch_is_a_contender_that_is_right():
    q, k, v = (torch.randn(1, 2, 33, 128, dtype=torch.float16) for _ in range(3))
    out = CAUSAL_SDPA.launch(q, k, v)
    expected = fmha.reference(q.double(), k.double(), v.double(), causal=True)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-3)


@pytest.fixture
def tilegym(tmp_path, monkeypatch):
    """Install a TileGym that replaces `cuda.tile.launch`, as the real one does."""
    (tmp_path / "tilegym.py").write_text(
        "import cuda.tile as ct\n"
        "from types import SimpleNamespace\n"
        "ct.launch = lambda *_: None\n"
        "called = []\n"
        "ops = SimpleNamespace(fmha=lambda *_, **how: called.append(how))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("tilegym", None)


@pytest.mark.usefixtures("tilegym")
def test_tilegym_is_imported_before_anything_is_traced_and_replaces_nothing():
    launch = ct.launch
    (*_, row) = scaling.rows(True)
    assert "tilegym" in sys.modules
    q = torch.empty(1, 1, 8, 64)
    row.contender.launch(q, q, q)
    assert ct.launch is launch
    assert sys.modules["tilegym"].called == [{"scaling": 1 / 8, "is_causal": True, "backend": "cutile"}]


def test_a_library_is_missing_where_it_is_not_installed():
    assert missing("no_such_library") == "it is not installed"
    assert not missing("torch")
