from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from pytest_cutile.reports.cases import RunOutcome
from pytest_cutile.reports.compiled import compiled_document
from pytest_cutile.reports.terminal_summary import terminal_summary
from pytest_cutile.tile.compiler.toolchain import supported_architectures
from pytest_cutile.tile.static.facts import CaseFacts, LaunchFacts, Note, Site, SpillLine
from pytest_cutile.words.results import StaticResult
from pytest_cutile.words.text import WIDTH, render_lines
from pytest_cutile.words.verdicts import Reason, Verdict

LOAD = Site(operation="load", instruction="TMA Load", shape="64x128", file="kernels/k.py", line=10)
LAUNCH = LaunchFacts(
    kernel="k_kernel",
    grid=(64,),
    code_bytes=12_000,
    threads=256,
    ctas=1,
    registers=128,
    stack_bytes=0,
    local_bytes=0,
    static_shared_bytes=100_000,
    dynamic_shared_bytes=0,
    instruction_count=750,
    instructions={"tensor_core": {"HGMMA": 8}, "barrier": {"BAR": 1}},
    sites=(LOAD,),
)
WORSE = replace(
    LAUNCH,
    stack_bytes=64,
    sites=(replace(LOAD, instruction="Global-memory load", shape="", missed=("a reason " * 12,)),),
    spill_lines=tuple(SpillLine(file="kernels/a_long_name.py", line=n, instructions=9) for n in range(4)),
)


def case(*launches: LaunchFacts) -> CaseFacts:
    return CaseFacts(fingerprint="i", source="s", launches=launches)


def result(facts: CaseFacts | None, arch: str = "sm_90", name: str = "c", **fields) -> StaticResult:
    return StaticResult(
        **{
            "key": f"k[{name}]",
            "kernel": "k",
            "case": name,
            "arch": arch,
            "verdict": Verdict.PASS,
            "reason": Reason.NOT_WORSE,
            "facts": None if facts is None else to_builtins(facts),
            **fields,
        }
    )


def kernel_report(results, **options) -> list[str]:
    """Return the lines of the report that are not blank."""
    lines = render_lines(compiled_document(results, **options).blocks)
    return [line.text for line in lines if line.text]


def test_the_report_has_a_column_for_each_architecture():
    launches = [
        replace(launch, sites=tuple(replace(site, text="a = ct.load(A)") for site in launch.sites or ()))
        for launch in (LAUNCH, WORSE)
    ]
    lines = kernel_report([result(case(launches[0])), result(case(launches[1]), arch="sm_80")])
    text = "\n".join(lines)
    assert lines[0] == "k: c"
    assert lines[2].split() == ["sm_90", "sm_80"]
    assert "tensor-core instructions" in text
    assert any(line.split()[:3] == ["spills", "per", "thread"] and "64 B" in line for line in lines)
    assert any("k.py:10 load  a = ct.load(A)" in line and "TMA Load 64x128" in line for line in lines)
    assert any(line.startswith("  kernels/k.py:10 (sm_80): a reason") for line in lines)


def test_the_report_joins_cases_that_are_alike():
    other = replace(LAUNCH, grid=(1,))
    lines = kernel_report([result(case(LAUNCH)), result(case(other), name="d")])
    assert lines[0] == "k: c, d"
    assert sum("registers per thread" in line for line in lines) == 1
    changed = replace(LAUNCH, registers=40)
    assert "k: d" in kernel_report([result(case(LAUNCH)), result(case(changed), name="d")])


def test_the_report_of_all_architectures_is_not_wider_than_a_terminal():
    facts = case(LAUNCH, replace(WORSE, kernel="second_kernel"))
    lines = kernel_report([result(facts, arch=arch) for arch in supported_architectures()])
    tables = [line for line in lines if line.startswith("    ")]
    assert max(map(len, tables)) <= WIDTH
    for arch in supported_architectures():
        assert sum(arch in line.split() for line in tables) == 2  # one table for each kernel


def test_the_report_shows_what_is_unknown_as_unknown():
    bare = LaunchFacts(kernel="k_kernel", grid=(1,), code_bytes=100)
    rows = {line[4:28].strip(): line.split()[-1] for line in kernel_report([result(case(bare))])[3:]}
    assert rows["registers per thread"] == "?"
    assert rows["blocks per SM"] == "?"
    assert rows["code"] == "B"


def test_notes_are_listed():
    noted = replace(LAUNCH, notes=(Note(text="a hint", file="k.py", line=3),))
    assert "  k.py:3 (sm_90): a hint" in kernel_report([result(case(noted))])


def test_the_summary_says_what_became_better_and_what_a_toolchain_did():
    better: dict[str, Any] = {
        "verdict": "improvement",
        "reason": Reason.BETTER_CODE,
        "changes": ("better: spills: 8 -> 0",),
    }
    run = RunOutcome(
        results=[
            result(None, **better, toolchain="tileiras: 1 -> 2"),
            result(None, arch="sm_80", **better, toolchain="tileiras: 1 -> 2"),
            result(None, name="d", toolchain="tileiras: 1 -> 2"),
        ]
    )
    lines = [line.text for line in render_lines(terminal_summary(run).blocks)]
    assert "k, c sm_90 and 1 more: better: spills: 8 -> 0" in lines
    assert "toolchain, since the static baselines: tileiras: 1 -> 2: 2 better-code, 1 not-worse" in lines
