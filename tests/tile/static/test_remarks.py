from pytest_cutile.tile.static.facts import Note, Site
from pytest_cutile.tile.static.remarks import read_remarks

LOAD = """--- !Passed
Pass:            Memory
Name:            RemarkMemoryLoadInstructionSelected
DebugLoc:        { File: '/home/me/k.py', Line: 9, Column: 10 }
Function:        k
Args:
  - RemarkId:    %d
  - Remark:      Load instruction selected
  - Instruction: %s
...
"""
SHAPED = LOAD.replace("...\n", "  - Shape:       '[64, 128]'\n...\n")
FAILED = """--- !Failure
Pass:            Memory
Name:            RemarkMemoryTmaLoadFailed
DebugLoc:        { File: '/home/me/k.py', Line: 9, Column: 10 }
Function:        k
Args:
  - RemarkId:    1
  - Remark:      Failed to select TMA load instruction
  - Reason:      'loc("/home/me/k.py":9:10): stride not 16-byte aligned'
  - Reason:      'loc("/home/me/k.py":9:10): stride not 16-byte aligned'
  - Reason:      'loc("/home/me/k.py":9:10): another reason'
...
"""
HINT = """--- !Passed
Pass:            Hints
Name:            RemarkHintDefault
DebugLoc:        { File: '/home/me/k.py', Line: 4, Column: 1 }
Function:        k
Args:
  - RemarkId:    1
  - Remark:      OptimizationHint used default latency
...
"""


def site(**changes) -> Site:
    fields = {
        "operation": "load",
        "instruction": "TMA Load",
        "shape": "64x128",
        "file": "/home/me/k.py",
        "line": 9,
    }
    return Site(**{**fields, **changes})


def test_what_became_of_a_load():
    assert read_remarks(SHAPED % (1, "TMA Load instruction")) == ((site(),), ())


def test_tileiras_says_everything_twice():
    once = SHAPED % (1, "TMA Load instruction") + HINT
    sites, notes = read_remarks(once + once)
    assert sites == (site(),)
    assert notes == (Note(text="OptimizationHint used default latency", file="/home/me/k.py", line=4),)


def test_two_loads_from_one_line_are_two():
    text = SHAPED % (1, "TMA Load instruction") + SHAPED % (2, "TMA Load instruction")
    assert read_remarks(text) == ((site(), site()), ())


def test_why_a_load_missed_tma_is_said_once():
    sites, notes = read_remarks(LOAD % (1, "Global-memory load instruction") + FAILED + FAILED)
    reasons = ("stride not 16-byte aligned", "another reason")
    assert sites == (site(instruction="Global-memory load", shape="", missed=reasons),)
    assert notes == ()


def test_sites_come_in_source_order():
    late = (LOAD % (1, "Ldgsts instruction")).replace("Line: 9", "Line: 30")
    same_line = (LOAD % (3, "Ldgsts instruction")).replace("Column: 10", "Column: 2")
    sites, _ = read_remarks(late + SHAPED % (2, "TMA Load instruction") + same_line)
    assert [(found.line, found.instruction) for found in sites] == [
        (9, "Ldgsts"),
        (9, "TMA Load"),
        (30, "Ldgsts"),
    ]


def test_nothing_and_what_is_not_known_yet():
    assert read_remarks("") == ((), ())
    unknown = HINT.replace("RemarkHintDefault", "RemarkOfTheFuture").replace("OptimizationHint used", "Uses")
    assert read_remarks(unknown)[1][0].text == "Uses default latency"
    assert read_remarks("--- !Passed\nName: X\n...\n")[1] == (Note(text="X", file="", line=0),)
