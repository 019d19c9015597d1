"""Cases whose code, launch and environment are a record's pass unmeasured; all others are measured."""

import contextlib
import re
import textwrap
from typing import Any

import pytest

from pytest_cutile.gates.revisions.paired import LaunchedKernels
from pytest_cutile.gates.speed import (  # here: pytester forgets modules that a test imports first
    gate,
    timed_case,
)
from pytest_cutile.tile.compiler.compilations import Compilations
from pytest_cutile.timing.gpu.lock import GpuLock
from pytest_cutile.timing.measure.blocks import measure
from pytest_cutile.timing.measure.timed_outputs import TimedOutputs
from tests.plugin.conftest import IN_THIS_PROCESS, TIMER

pytestmark = pytest.mark.slow

NO_LAUNCHES = """
_played = FileTimer.time_block


def time_block(self, launches):
    with (HERE / "timed").open("a") as file:
        file.write("timed\\n")
    return _played(self, [launches[0] if launches == [reference_workload] else int for _ in launches])


FileTimer.time_block = time_block
"""
WORK = """
    work=lambda n: pytest_cutile.Work(flops=2.0 * n**3, dtype="float16"),
    reduction"""


class Timed:
    """A real kernel with a recorded fingerprint, whose times are played."""

    def __init__(self, static) -> None:
        self.static, self.project = static, static.project
        (self.project.path / "conftest.py").write_text(textwrap.dedent(TIMER + IN_THIS_PROCESS + NO_LAUNCHES))
        static.text = static.text.replace("\n    reduction", WORK)
        static.change()

    def start(self) -> None:
        """Commit and record."""
        self.project.commit()
        (self.project.path / ".git" / "info" / "exclude").write_text("timed\n")
        self.record()

    def record(self, *args: str) -> None:
        self.run("--update-baselines", *args).assert_outcomes(passed=self.n_cases)

    n_cases = 1

    def run(self, *args: str) -> pytest.RunResult:
        """Run the gate; `n_timed` says how many placements were timed."""
        timed = self.project.path / "timed"
        timed.unlink(missing_ok=True)
        result: pytest.RunResult = self.project.run(*args, gates="cutile_speed")
        self.n_timed = len(timed.read_text().split()) if timed.exists() else 0
        return result

    @property
    def records(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self.project.data["entries"]["mm[n256]"]["records"]
        return records


def launch_nothing(outputs: TimedOutputs, **_: bool) -> None:
    outputs.skipped = "no GPU"


@pytest.fixture
def timed(static, monkeypatch) -> Timed:
    # There is no GPU: nothing can be launched or checked.
    monkeypatch.setattr(timed_case, "check_task", lambda *_, **__: None)
    monkeypatch.setattr(gate, "computes_otherwise", lambda *_: False)
    monkeypatch.setattr(
        TimedOutputs, "_launch_first", lambda outputs, **_: setattr(outputs, "skipped", "no GPU")
    )
    return Timed(static)


@pytest.fixture
def many(timed: Timed) -> Timed:
    """Eight cases: three of them are sentinels."""
    cases = ", ".join(f'pytest_cutile.Case(name="n{n}", params={{"n": 256}})' for n in range(8))
    timed.static.text = timed.static.text.replace('pytest_cutile.Case(name="n256", params={"n": 256})', cases)
    timed.static.change()
    timed.n_cases = 8
    timed.start()
    return timed


def test_the_gpu_is_held_alone_while_a_case_is_timed(timed, monkeypatch):
    happened = []

    @contextlib.contextmanager
    def alone(_):
        happened.append("held")
        yield
        happened.append("released")

    def measure_and_tell(*args, **options):
        happened.append("timed")
        return measure(*args, **options)

    monkeypatch.setattr(GpuLock, "alone", alone)
    monkeypatch.setattr(gate, "measure", measure_and_tell)
    timed.run().assert_outcomes(passed=1)
    assert happened == ["held", "timed", "released"]


def test_a_run_of_speed_alone_checks_a_few_parts_of_a_large_case(timed, monkeypatch):
    sampled = []
    monkeypatch.setattr(timed_case, "check_task", lambda *_, **options: sampled.append(options["sampled"]))
    timed.run()
    assert sampled == [True]


def test_unchanged_cases_pass_unmeasured_but_for_a_few_sentinels(many):
    many.project.times(40.2)
    result = many.run("--perf-strict", "--junitxml=junit.xml")
    result.assert_outcomes(passed=8)
    assert many.n_timed == 3 * 8  # sentinels, placements
    junit = (many.project.path / "junit.xml").read_text()
    assert junit.count('name="cutile.speed.reason" value="unchanged"') == 8
    summary = [line for line in result.outlines if line.startswith("this GPU today, against stored times")]
    assert [line.rpartition(" cases: ")[2] for line in summary] == ["+0.5 % in the median, +0.5 % to +0.5 %"]
    result = many.run("--perf-all")
    result.assert_outcomes(passed=8)
    assert many.n_timed == 8 * 8


def test_a_case_of_a_neutral_change_is_unchanged_from_then_on(timed):
    timed.start()
    timed.static.change(("acc.astype(C.dtype)", "(acc + 0.5).astype(C.dtype)"))
    timed.project.commit()
    timed.record()
    assert [record.get("moved", "") for record in timed.records] == ["", ""]
    assert timed.records[0]["fingerprint"] != timed.records[1]["fingerprint"]
    assert timed.records[0]["source"] != timed.records[1]["source"]
    assert timed.records[1]["changes"]["burst"]["value"] == 0
    timed.project.times(40.0, baseline=30.0)  # would be a regression if it were paired with the anchor
    timed.run("--perf-strict").assert_outcomes(passed=1)


CHANGES = {
    "code": (("acc.astype(C.dtype)", "(acc + 0.5).astype(C.dtype)"),),
    "tile": (("TILE_M, TILE_N, TILE_K = 64, 64, 32", "TILE_M, TILE_N, TILE_K = 32, 64, 32"),),
    "hint": (("HINTS = {}", "HINTS = {'occupancy': 2}"),),
    "torch operation": (("    c = torch.empty(", "    a = a * 1\n    c = torch.empty("),),
    "inputs": (('return make_tensor((n, n), "float16"), ', 'return -make_tensor((n, n), "float16"), '),),
}

COMPILED = {
    "code": "different: bytes of code: ",
    "tile": "worse: ",
    "hint": "different: registers per thread: ",
    "torch operation": "the machine code and its launches are the same",
    "inputs": "the machine code and its launches are the same",
}
"""What the message of a slower case says of its compiled code."""


@pytest.mark.parametrize("what", CHANGES)
def test_what_can_change_a_time_is_measured(timed, what):
    timed.start()
    timed.static.change(*CHANGES[what])
    timed.project.times(42.4)
    result = timed.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*is 6.0% slower than its baseline*", f"  compiler *{COMPILED[what]}*", "*the kernel of *, which *"]
    )
    timed.project.times(40.0)
    timed.run("--perf-strict").assert_outcomes(passed=1)


def test_a_comment_changes_nothing(timed):
    timed.start()
    timed.static.change(("def mm(a, b):", "def mm(a, b):  # multiplies"))
    timed.project.times(40.0, baseline=30.0)
    result = timed.run("--perf-strict")
    result.assert_outcomes(passed=1)


def test_another_environment_is_measured(timed):
    timed.start()
    timed.project.times(44.0, environment={"driver": "590.2", "tileiras": "13.4.92"})
    result = timed.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*environment *driver: 580.1 -> 590.2"])
    timed.project.times(40.4, environment={"driver": "590.2", "tileiras": "13.4.92"})
    timed.run("--perf-strict").assert_outcomes(passed=1)


OTHER = {"driver": "590.2", "tileiras": "13.4.92"}


@pytest.fixture
def tiled(many):
    """Tiles that the launcher imports while it runs: no digest of it as written knows them."""
    text = many.static.text
    text = text.replace("TILE_M, TILE_N, TILE_K = 64, 64, 32", "")
    imported = "    import torch\n    from mykernels.tiles import TILE_M, TILE_N, TILE_K\n"
    many.static.text = text.replace("    import torch\n", imported)
    many.static.change()
    tiles = many.project.path / "mykernels" / "tiles.py"
    tiles.write_text("TILE_M, TILE_N, TILE_K = 64, 64, 32\n")
    many.project.baseline.unlink()
    many.start()
    return many, tiles


@pytest.mark.parametrize("recorded", [False, True], ids=["another environment", "one that was recorded"])
def test_what_only_a_compiler_sees_is_measured_in_another_environment(tiled, recorded):
    many, tiles = tiled
    if recorded:
        many.project.times(40.0, environment=OTHER)
        many.record()
        many.project.commit()
    tiles.write_text("TILE_M, TILE_N, TILE_K = 32, 64, 32\n")
    many.project.commit()
    many.project.times(44.0, environment=OTHER)
    result = many.run()
    result.assert_outcomes(failed=8)  # beside the baseline kernel
    result.stdout.fnmatch_lines(["*+10.0 %*"])


@pytest.mark.parametrize("us", [41.6, 44.0])
def test_a_commit_that_is_gone_says_nothing_about_code_in_another_environment(tiled, us):
    many, tiles = tiled
    baseline = many.project.baseline
    lost = re.sub(r'"commit": ?"[0-9a-f]{40}"', f'"commit": "{"ab" * 20}"', baseline.read_text())
    assert lost != baseline.read_text()
    baseline.write_text(lost)
    # Of another size, or Python may take what it compiled of the file in the same second.
    tiles.write_text("TILE_M, TILE_N, TILE_K = 32, 64, 32  # smaller\n")
    many.project.times(us, environment=OTHER)
    result = many.run("--perf-strict")
    result.assert_outcomes(failed=8)
    assert "the code is as recorded" not in result.stdout.str()


def test_code_and_environment_of_two_records_are_no_record(timed):
    timed.start()
    first = timed.static.text
    timed.static.change(("acc.astype(C.dtype)", "(acc + 0.5).astype(C.dtype)"))
    timed.project.commit()
    timed.project.times(40.0, environment=OTHER)
    timed.record()
    timed.static.file.write_text(first)
    timed.run("--perf-strict").assert_outcomes(passed=1)
    assert timed.n_timed > 0


def test_a_sentinel_shows_a_slow_gpu_and_passes(timed):
    timed.start()
    timed.project.times(44.0)
    result = timed.run("--perf-strict")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["this GPU today, against stored times of 1 unchanged case: +10.0 %"])
    result.stdout.fnmatch_lines(["mm *n256 *+10.0 % *pass"])
    assert timed.n_timed == 8  # placements of one process


def test_an_unchanged_case_that_a_slow_gpu_measures_for_perf_all_is_inconclusive(timed):
    timed.start()
    timed.project.times(44.0)
    result = timed.run("--perf-all")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["inconclusive: mm[[]n256[]]: it is +10.0 % against the stored times*"])
    timed.run("--perf-all", "--perf-strict").assert_outcomes(failed=1)


def test_perf_always_measures(project):
    project.commit()
    project.pytester.makepyfile(
        test_mine="""
        def launch(): pass

        def test_mine(perf): assert perf(launch, bytes=1e8).burst_us > 1
        """
    )
    project.commit()
    project.run("test_mine.py", "--update-baselines", gates="").assert_outcomes(passed=1)
    project.times(40.2)
    result = project.run("test_mine.py", "--perf-strict", gates="")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["test_mine *40.2 us *+0.5 % *pass"])


ONCE = (
    (
        "def mm(a, b):",
        "import torch\nvars(torch).setdefault('_mm_of_the_test', mm_kernel)\n\n\ndef mm(a, b):",
    ),
    ("mm_kernel.replace_hints", "torch._mm_of_the_test.replace_hints"),
)


def test_one_kernel_for_both_sides_is_not_measured(timed, monkeypatch):
    """As an operator of torch.library, the kernel is registered once in a process."""
    import torch

    timed.static.change(*ONCE)
    timed.start()
    monkeypatch.delattr(torch, "_mm_of_the_test")
    timed.static.change(*ONCE, *CHANGES["code"])
    result = timed.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E   mm[[]n256[]]: this process gets one kernel for both the working tree and *"]
    )
    result.stdout.fnmatch_lines(["mm *speed: same-kernel"])
    assert timed.n_timed == 0
    monkeypatch.delattr(torch, "_mm_of_the_test")


def test_a_baseline_kernel_that_does_not_compile_leaves_stored_times(timed, monkeypatch):
    timed.start()
    of_today = Compilations.speed_fingerprint

    def speed_fingerprint(compilations, case):
        if " recorded at " in case.kernel:
            raise ValueError("error: unknown operation")
        return of_today(compilations, case)

    monkeypatch.setattr(Compilations, "speed_fingerprint", speed_fingerprint)
    timed.static.change(*CHANGES["code"])
    timed.project.times(41.4)
    result = timed.run()
    result.assert_outcomes(passed=1)
    said = " ".join(result.stdout.str().split())
    assert "inconclusive: mm[n256]: stored times show +3.5 %" in said
    assert "does not compile: error: unknown operation" in said


@pytest.mark.parametrize("environment", [{}, {"driver": "590.2", "tileiras": "13.4.92"}])
@pytest.mark.parametrize("what", ["code", "tile", "torch operation", "inputs"])
def test_a_squash_merge_that_changed_the_case_too_is_no_anchor(timed, what, environment):
    timed.start()
    timed.static.change(*CHANGES[what])
    squash(timed.project)
    timed.project.times(41.4, **({"environment": environment} if environment else {}))
    result = timed.run()
    result.assert_outcomes(passed=1)
    said = " ".join(result.stdout.str().split())
    assert "inconclusive: mm[n256]: stored times show +3.5 %" in said
    assert "is not the one that was recorded" in said


def squash(project) -> None:
    """Replace the history by one commit of everything."""
    project.git("checkout", "-q", "--orphan", "squashed")
    project.commit()
    project.git("branch", "-qD", "main")
    project.git("reflog", "expire", "--expire=now", "--all")
    project.git("gc", "-q", "--prune=now")


def test_another_commit_of_the_same_code_stands_in_for_one_that_is_gone(timed):
    timed.start()
    recorded = timed.records[0]
    timed.static.change(("def mm(a, b):", "def mm(a, b):  # multiplies"))
    timed.project.commit()
    timed.record()
    other = timed.project.git("rev-parse", "HEAD").strip()
    timed.project.edit_baselines(lambda data: data["sessions"][recorded["session"]].update(commit="1" * 40))
    timed.static.change(*CHANGES["code"])
    timed.project.times(42.4)
    result = timed.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*the kernel of {other[:12]}, which *"])


def test_a_module_that_was_moved_has_its_baseline_kernel_once_it_was_recorded_again(timed):
    timed.start()
    timed.project.commit()
    timed.project.git("mv", "mykernels/mm.py", "mykernels/product.py")
    moved = timed.project.commit()
    timed.static.file = timed.static.file.with_name("product.py")
    timed.static.change(*CHANGES["code"])
    timed.project.times(41.4)
    unwrapped = " ".join(timed.run().stdout.str().split())
    assert "has no mm[n256] in mykernels.product: if it was moved or renamed, record it again" in unwrapped
    timed.static.change()
    timed.project.times(40.0)
    timed.record()
    timed.static.change(*CHANGES["code"])
    timed.project.times(41.4)
    result = timed.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*the kernel of {moved[:12]}, which *"])


PERF = """
    def launch(): return 1

    def test_mine(perf): perf(launch, bytes=1e8)
"""


@pytest.mark.parametrize("changed", [False, True])
def test_after_a_squash_merge_perf_has_the_launcher_that_was_recorded(project, changed):
    module = project.pytester.makepyfile(test_mine=PERF)
    project.commit()
    project.run("test_mine.py", "--update-baselines", gates="").assert_outcomes(passed=1)
    if changed:
        module.write_text(module.read_text().replace("return 1", "return 2"))
    squash(project)
    module.write_text(module.read_text().replace("return ", "return 1 + "))
    project.times(41.4)
    result = project.run("test_mine.py", gates="")
    said = " ".join(result.stdout.str().split())
    result.assert_outcomes(passed=int(changed), failed=int(not changed))
    assert ("is not the one that was recorded" in said) == changed


def test_parameters_that_change_values_alone_are_measured(timed):
    timed.static.text = timed.static.text.replace("*, n):", "*, n, low):").replace(
        "lambda n:", "lambda n, low:"
    )
    timed.static.change(('params={"n": 256}', 'params={"n": 256, "low": 0}'))
    timed.start()
    timed.static.change(('params={"n": 256}', 'params={"n": 256, "low": 1}'))
    timed.project.times(42.4)
    result = timed.run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*is 6.0% slower than its baseline*"])


# -- `--perf-baseline git:REV` ---------------------------------------------------------------------------


def test_the_same_code_in_a_revision_is_left_out(timed):
    timed.start()
    result = timed.run("--perf-baseline=git:HEAD")
    result.stdout.fnmatch_lines(["cutile: 1 speed test left out, of cases that compile to the same in *"])
    assert timed.n_timed == 0
    timed.run("--perf-baseline=git:HEAD", "--perf-all").assert_outcomes(passed=1)
    assert timed.n_timed > 0
    timed.static.change(*CHANGES["torch operation"])
    timed.project.times(42.4)
    timed.run("--perf-baseline=git:HEAD").assert_outcomes(failed=1)


def test_one_kernel_that_both_sides_launch_is_not_measured(timed, monkeypatch):
    """No fingerprint tells here: the gate asks what was launched."""
    timed.start()
    monkeypatch.setattr(LaunchedKernels, "shared", "mm_kernel")
    timed.static.change(*CHANGES["code"])
    result = timed.run("--perf-baseline=git:HEAD")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*launches one kernel for both the working tree and the baseline: mm_kernel.*"]
    )
    result.stdout.fnmatch_lines(["mm *speed: same-kernel"])


def test_one_kernel_for_both_sides_is_not_left_out(timed, monkeypatch):
    import torch

    timed.static.change(*ONCE)
    timed.start()
    monkeypatch.delattr(torch, "_mm_of_the_test")
    timed.static.change(*ONCE, *CHANGES["code"])
    result = timed.run("--perf-baseline=git:HEAD")
    assert "left out" not in result.stdout.str()
    monkeypatch.delattr(torch, "_mm_of_the_test")
