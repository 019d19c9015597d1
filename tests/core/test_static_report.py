import dataclasses
from typing import Any

from pytest_cutile.core.report import WIDTH, summary
from pytest_cutile.core.results import Gate, GateResult
from pytest_cutile.core.static_baselines import StaticEntry
from pytest_cutile.core.static_facts import CaseFacts, LaunchFacts, Note, Site, SpillLine
from pytest_cutile.core.static_json import to_json
from pytest_cutile.core.static_report import kernel_report, static_message
from pytest_cutile.core.static_rules import StaticRule, compare
from pytest_cutile.core.toolchain import supported_architectures

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
WORSE = dataclasses.replace(
    LAUNCH,
    stack_bytes=64,
    sites=(
        dataclasses.replace(LOAD, instruction="Global-memory load", shape="", missed=("a reason " * 12,)),
    ),
    spill_lines=tuple(SpillLine(file="kernels/a_long_name.py", line=n, instructions=9) for n in range(4)),
)


def case(*launches: LaunchFacts) -> CaseFacts:
    return CaseFacts(identity="i", source="s", launches=launches)


def message(**changes) -> str:
    then, now = case(LAUNCH), case(WORSE)
    options = {
        "key": "k[c]",
        "arch": "sm_90",
        "nodeid": "kernels/k.py::static[c-sm_90]",
        "entry": StaticEntry(
            facts=then, toolchain={}, provenance={"at": "2026-11-21T10:00:00+00:00", "commit": "abc"}
        ),
        "comparison": compare(then, now, arch="sm_90", rule=StaticRule()),
        "same_source": False,
        "toolchain_changes": (),
        "toolchain": {"tileiras": "13.4.92"},
        "baseline_file": "baselines/sm_90-static.json",
    }
    return static_message(**{**options, **changes})


def test_the_message_says_what_where_who_and_how_to_accept_it():
    text = message()
    lines = text.splitlines()
    assert lines[0] == (
        "k[c] for sm_90 compiles to something worse: spills, in bytes per thread: 0 -> 64 (and 1 more)"
    )
    assert "  worse      spills, in bytes per thread: 0 -> 64" in lines
    assert "  worse      kernels/k.py:10: load: TMA Load 64x128 -> Global-memory load" in lines
    assert "  baseline   baselines/sm_90-static.json (2026-11-21, commit abc)" in lines
    assert "  pytest 'kernels/k.py::static[c-sm_90]' --arch sm_90 \\" in lines
    assert "    --update-baselines --reason 'why it is worse'" in lines
    assert max(map(len, lines)) <= WIDTH + 15


def test_the_message_names_the_cause():
    changes = ["tileiras: 13.3 -> 13.4"]
    assert "same toolchain (tileiras 13.4.92)" in message()
    assert (
        "its source is the same, so its launch or the compiler's choice differs; same toolchain"
        in message(same_source=True)
    )
    both = message(toolchain_changes=changes)
    assert "another toolchain (tileiras: 13.3 -> 13.4); the kernel's source changed, too" in both
    compiler = message(toolchain_changes=changes, same_source=True)
    assert "another toolchain (tileiras: 13.3 -> 13.4); the kernel's source is the same" in compiler


def test_the_message_says_what_is_unknown_and_repeats_the_option():
    text = message(missing=["instructions are unknown: ..."], baseline_option=" --perf-baseline other")
    assert "  unknown    instructions are unknown: ..." in text
    assert "--arch sm_90 --perf-baseline other \\" in text


def result(facts: CaseFacts | None, arch: str = "sm_90", name: str = "c", **fields) -> GateResult:
    return GateResult(
        **{
            "gate": Gate.STATIC,
            "key": f"k[{name}]",
            "kernel": "k",
            "case": name,
            "arch": arch,
            "verdict": "pass",
            "reason": "no-worse",
            "facts": None if facts is None else to_json(facts),
            **fields,
        }
    )


def test_the_report_has_a_column_for_each_architecture():
    lines = kernel_report(
        [result(case(LAUNCH)), result(case(WORSE), arch="sm_80")], source_line=lambda *_: "a = ct.load(A)"
    )
    text = "\n".join(lines)
    assert lines[0] == "k: c"
    assert lines[2].split() == ["sm_90", "sm_80"]
    assert "tensor-core instructions" in text
    assert any(line.split()[:3] == ["spills", "per", "thread"] and "64 B" in line for line in lines)
    assert any("k.py:10 load  a = ct.load(A)" in line and "TMA Load 64x128" in line for line in lines)
    assert any(line.startswith("  kernels/k.py:10 (sm_80): a reason") for line in lines)


def test_the_report_joins_cases_that_are_alike():
    other = dataclasses.replace(LAUNCH, grid=(1,))
    lines = kernel_report([result(case(LAUNCH)), result(case(other), name="d")])
    assert lines[0] == "k: c, d"
    assert sum("registers per thread" in line for line in lines) == 1
    changed = dataclasses.replace(LAUNCH, registers=40)
    assert "k: d" in kernel_report([result(case(LAUNCH)), result(case(changed), name="d")])


def test_the_report_of_all_architectures_is_not_wider_than_a_terminal():
    facts = case(LAUNCH, dataclasses.replace(WORSE, kernel="second_kernel"))
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
    noted = dataclasses.replace(LAUNCH, notes=(Note(text="a hint", file="k.py", line=3),))
    assert "  k.py:3 (sm_90): a hint" in kernel_report([result(case(noted))])


def test_the_summary_says_what_became_better_and_what_a_toolchain_did():
    better: dict[str, Any] = {
        "verdict": "improvement",
        "reason": "better-code",
        "changes": ("better: spills: 8 -> 0",),
    }
    lines = [
        line.text
        for line in summary(
            [
                result(None, **better, toolchain="tileiras: 1 -> 2"),
                result(None, arch="sm_80", **better, toolchain="tileiras: 1 -> 2"),
                result(None, name="d", toolchain="tileiras: 1 -> 2"),
            ]
        )
    ]
    assert "k, c sm_90 and 1 more: better: spills: 8 -> 0" in lines
    assert "toolchain, since the static baselines: tileiras: 1 -> 2: 2 better-code, 1 no-worse" in lines
