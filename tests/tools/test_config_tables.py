"""Entries of tables: which one a launcher chose, and what becomes of the file when another is put there."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernels._gemm import GemmConfig
from kernels.group_gemm import GroupGemmConfig
from tools import tune_kernels
from tools.gpu_runs import suites
from tools.tuner.config_source import CannotWrite, config_source, entry_lines, find_source, rewrite
from tools.tuner.config_tables import (
    NO_ARCHITECTURE,
    Place,
    Question,
    Tables,
    find_place,
    make_entry,
    replace_entry,
)

TABLES = """
import math
from dataclasses import dataclass, replace

@dataclass(frozen=True, kw_only=True)
class TileConfig:
    tile: int
    warps: int | None = None
    min_k: int = 0

CONFIGS = {
    # Not measured, and two at once.
    "sm_80": TileConfig(tile=16),
    "sm_89": TileConfig(tile=16),
    # Measured
    # long ago.
    "sm_90": TileConfig(tile=32, warps=4),
}
DEFAULT_CONFIG = TileConfig(tile=1)
_WIDE = TileConfig(tile=512)
_MEASURED = {
    2: ((2**10, TileConfig(tile=64)), (math.inf, _WIDE)),
    4: ((math.inf, _WIDE),),
}
ARCHITECTURES = ("sm_80", "sm_89", "sm_90")
BY_WIDTH = dict.fromkeys(ARCHITECTURES, _MEASURED)
FIT: dict = {
    "sm_90": (TileConfig(tile=64, min_k=4096), TileConfig(tile=8)),
    "sm_89": (
        # Only
        # this.
        TileConfig(tile=16, min_k=1024),
        # And this.
        TileConfig(
            tile=8,
        ),
    ),
}
HOPPER = {(2, False): replace(_WIDE, tile=256), (2, True): _WIDE}


def choose_config(arch, *, itemsize=None, width=0, k=None, causal=None):
    if causal is not None:
        return HOPPER[itemsize, causal] if arch == "sm_90" else DEFAULT_CONFIG
    if itemsize:
        return next(config for limit, config in BY_WIDTH[arch][itemsize] if width <= limit)
    if k is not None:
        return replace(next(config for config in FIT[arch] if config.min_k <= k < 10 * config.tile), min_k=0)
    return CONFIGS.get(arch, DEFAULT_CONFIG)
"""


def asked(arch, case="one", **facets):
    return Question(case=case, arch=arch, facets=facets)


@pytest.fixture
def tables(tmp_path):
    file = tmp_path / "tables_of_a_kernel.py"
    file.write_text(TABLES.replace(" < 10 * config.tile", ""))
    return Tables(file)


def put(tables, question, *, others=(), comment="H200, today.", **fields):
    """Replace the entry that answers `question` by one with `fields`; return the rewriting and its lines."""
    place = find_place(tables, question)
    assert isinstance(place, Place)
    made = tables.evaluate(config_source(type(tables.entry(place))(**fields)))
    entry = make_entry(tables, place, question, made)
    rewriting = replace_entry(tables, place, entry, comment, tuned=[(question, made)], others=others)
    return rewriting, [line[1:] for line in rewriting.difference() if line.startswith("+")]


def test_configurations_within_a_configuration_are_written_as_it_is():
    """Without what is the default, and laid out as a person would."""
    tile: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "tile_k": 32}
    config = GroupGemmConfig(**tile, latency=4, tails=(GemmConfig(**tile), GemmConfig(**tile, occupancy=2)))
    assert entry_lines('"sm_90"', config_source(config), "Today.") == [
        "    # Today.",
        '    "sm_90": GroupGemmConfig(',
        "        tile_m=64,",
        "        tile_n=64,",
        "        tile_k=32,",
        "        latency=4,",
        "        tails=(",
        "            GemmConfig(tile_m=64, tile_n=64, tile_k=32),",
        "            GemmConfig(tile_m=64, tile_n=64, tile_k=32, occupancy=2),",
        "        ),",
        "    ),",
    ]


def test_an_entry_is_found_by_what_is_chosen_of_it(tables):
    def place(arch, **facets):
        return str(find_place(tables, asked(arch, **facets)))

    assert place("sm_90") == "CONFIGS['sm_90']"
    assert place("sm_90", itemsize=2, width=5000) == "BY_WIDTH['sm_90'][2][1][1]"
    assert place("sm_90", itemsize=2, causal=True) == "HOPPER[(2, True)]"
    assert place("sm_90", k=4096) == "FIT['sm_90'][0]"  # though its min_k is not what was chosen
    assert place("sm_75") == "DEFAULT_CONFIG"
    assert "raised KeyError" in place("sm_75", itemsize=2)
    assert tables.architectures() == ["sm_80", "sm_89", "sm_90", NO_ARCHITECTURE]


def test_an_entry_is_replaced_with_its_comment(tables):
    rewriting, lines = put(tables, asked("sm_90"), tile=256)
    assert not rewriting.problem
    assert lines == ["    # H200, today.", '    "sm_90": TileConfig(tile=256),']
    assert "long ago" not in rewriting.text
    rewriting.write()
    assert Tables(tables.file).ask(asked("sm_90")).config.tile == 256


def test_a_comment_that_speaks_of_others_stays(tables):
    rewriting, lines = put(tables, asked("sm_80"), tile=256)
    assert lines == ["    # This one alone: H200, today.", '    "sm_80": TileConfig(tile=256),']
    assert "two at once" in rewriting.text


def test_an_architecture_gets_its_own_of_a_shared_table(tables):
    rewriting, lines = put(tables, asked("sm_89", itemsize=2, width=5000), tile=128)
    assert not rewriting.problem
    assert lines == [
        "BY_WIDTH = {",
        "    **dict.fromkeys(ARCHITECTURES, _MEASURED),",
        '    "sm_89": {',
        "        **_MEASURED,",
        "        2: (",
        "            (1024, TileConfig(tile=64)),",
        "            # H200, today.",
        "            (math.inf, TileConfig(tile=128)),",
        "        ),",
        "    },",
        "}",
    ]
    rewriting.write()
    again, lines = put(Tables(tables.file), asked("sm_80", itemsize=4), tile=7)
    assert lines == [
        '    "sm_80": {',
        "        **_MEASURED,",
        "        # H200, today.",
        "        4: ((math.inf, TileConfig(tile=7)),),",
        "    },",
    ]
    again.write()
    _, lines = put(Tables(tables.file), asked("sm_89", itemsize=2, width=5), tile=9)
    assert lines == ["            # H200, today.", "            (1024, TileConfig(tile=9)),"]


def test_what_the_launcher_changes_stays_as_it_is(tables):
    rewriting, lines = put(tables, asked("sm_89", k=1024), tile=128)
    assert lines[-1] == "        TileConfig(tile=128, min_k=1024),"
    assert "Only" not in rewriting.text
    _, lines = put(tables, asked("sm_90", k=4096), tile=128)
    assert lines == [
        '    "sm_90": (',
        "        # This one alone: H200, today.",
        "        TileConfig(tile=128, min_k=4096),",
        "        TileConfig(tile=8),",
        "    ),",
    ]


def test_a_table_in_one_line_is_opened(tables):
    _, lines = put(tables, asked("sm_90", itemsize=2, causal=True), tile=128)
    assert lines == [
        "HOPPER = {",
        "    (2, False): replace(_WIDE, tile=256),",
        "    # H200, today.",
        "    (2, True): TileConfig(tile=128),",
        "}",
    ]


def test_what_is_for_other_architectures_as_well_is_left_alone(tables):
    rewriting, lines = put(tables, asked("sm_75"), tile=128)
    assert not lines
    assert "DEFAULT_CONFIG is for architectures without an entry as well" in rewriting.problem
    assert "sm_75 needs an entry of its own" in rewriting.problem
    assert "line 19, which is TileConfig(tile=1): DEFAULT_CONFIG = TileConfig(tile=128)" in rewriting.problem


def test_what_changes_other_cases_is_left_alone(tmp_path):
    file = tmp_path / "tables_of_a_kernel.py"
    file.write_text(TABLES)
    tables = Tables(file)
    question, other = asked("sm_89", k=1024), asked("sm_89", "other", k=70)
    place = Place(table="FIT", path=("sm_89", 1))
    assert find_place(tables, other) == place
    rewriting = replace_entry(
        tables,
        place,
        tables.evaluate("TileConfig(tile=8, min_k=80)"),
        "",
        tuned=[],
        others=[other],
    )
    assert "the launcher would choose another for other, too: StopIteration()" in rewriting.problem
    assert "by hand" in rewriting.problem.lower()
    assert rewriting.text == TABLES
    config = tables.evaluate("TileConfig(tile=1)")  # with which it would not be reached
    assert make_entry(tables, place, other, config) is None
    rewriting = replace_entry(tables, place, config, "", tuned=[(other, config)], others=[question])
    assert "the launcher would not choose it for other" in rewriting.problem


def test_a_table_of_another_file_is_a_reason():
    with pytest.raises(CannotWrite, match="X is not assigned in this file"):
        find_source("from others import X\n", {"X": {}}, "X", ())


def test_comments_that_would_be_lost_are_a_reason(tables):
    text = tables.text.replace(
        '    "sm_90": (TileConfig(tile=64, min_k=4096), TileConfig(tile=8)),',
        '    "sm_90": (TileConfig(tile=64, min_k=4096),  # large\n              TileConfig(tile=8)),',
    )
    with pytest.raises(CannotWrite, match="the comments from line 28 on would be lost"):
        rewrite(text, Tables(tables.file, text).names, "FIT", ("sm_90", 0), "TileConfig(tile=1)", "")


def test_an_entry_that_is_too_long_has_a_line_for_each_field():
    source = "LongConfig(" + ", ".join(f"a_field_with_a_name_{n}={n}" for n in range(6)) + ")"
    lines = entry_lines('"sm_90"', source, "measured " * 30)
    assert max(map(len, lines)) <= 110
    assert lines[-8:] == [
        '    "sm_90": LongConfig(',
        *(f"        a_field_with_a_name_{n}={n}," for n in range(6)),
        "    ),",
    ]


# -- from what was measured to the file -------------------------------------------------------------


def measured(case, facets, committed, rows):
    """Return what tuning finds for a case; `rows` are sources and how many times as fast they are."""
    plain = [{"source": source, "config": {"is": source}} for source, _ in rows]
    return {
        "suite": "of.tables",
        "case": case,
        "facets": facets,
        "chooser": "choose_config",
        "chosen": 1,
        "committed": committed,
        "failures": [],
        "rows": [
            row | {"quick_ratio": ratio, "us_per_launch": 100 / ratio, "committed": ratio == 1.0}
            for row, (_, ratio) in zip(plain, rows, strict=True)
        ],
    }


@pytest.fixture
def write(tables, monkeypatch, capsys):
    def write_best(*cases, arch="sm_90", write=True):
        module = SimpleNamespace(__file__=str(tables.file))
        suite = SimpleNamespace(module=module, name="of.tables")
        monkeypatch.setattr(tune_kernels, "load_suite", lambda name: suite)  # noqa: ARG005
        monkeypatch.setattr(inspect, "getsourcefile", lambda module: module.__file__)
        monkeypatch.setattr(tune_kernels, "declared_questions", lambda suite, arch: ([], ["silent"]))  # noqa: ARG005
        environment = {"gpu": "NVIDIA GB10", "arch": arch}
        document = {"environment": environment, "date": "2026-12-01", "cases": list(cases)}
        tune_kernels._show_entries(document, write=write)
        return capsys.readouterr().out

    return write_best


def plain(**fields):
    return {"tile": 1, "warps": None, "min_k": 0} | fields


def test_each_entry_gets_the_best_of_its_cases(tables, write):
    rows = [("TileConfig(tile=2)", 1.2), ("TileConfig(tile=512)", 1.0)]
    cases = [
        measured("half", {"itemsize": 2, "width": 5000}, plain(tile=512), rows),
        measured("float", {"itemsize": 4, "width": 1}, plain(tile=512), rows),
        measured("other", {"itemsize": 4, "width": 2}, plain(tile=512), [("TileConfig(tile=3)", 9.0), *rows]),
    ]
    text = write(*cases, write=False)
    assert "--write puts it into BY_WIDTH['sm_80'][4][0][1] in" not in text
    assert Path(tables.file).read_text() == tables.text
    text = write(*cases, arch="sm_80")
    assert "of.tables: BY_WIDTH['sm_80'][4][0][1], the configuration of 2 cases" in text
    assert "at best 9.000x, TileConfig(tile=3)" in text
    assert "not compared, because the launcher could not be asked: silent" in text
    after = Tables(tables.file)
    tiles = {
        (arch, itemsize): after.ask(asked(arch, itemsize=itemsize, width=5000)).config.tile
        for arch in ("sm_80", "sm_90")
        for itemsize in (2, 4)
    }
    assert tiles == {("sm_80", 2): 2, ("sm_80", 4): 2, ("sm_90", 2): 512, ("sm_90", 4): 512}
    assert (
        "# GB10, 2026-12-01, cold L2, interleaved, against the entry before: float 83.33 us (100),"
        in after.text
    )


def test_what_an_entry_cannot_hold_is_said(tables, write):
    tables.file.write_text(TABLES)
    rows = [("TileConfig(tile=2)", 3.0), ("TileConfig(tile=48)", 1.5), ("TileConfig(tile=64)", 1.0)]
    case = measured("small", {"k": 70}, plain(tile=8), [*rows[:2], ("TileConfig(tile=8)", 1.0)])
    text = write(case)
    assert (
        "at best 1.500x, TileConfig(tile=48); 3.000x, TileConfig(tile=2), which the launcher does not" in text
    )
    assert "TileConfig(tile=48)," in tables.file.read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"committed": None}, "the launcher did not say what it chose"),
        ({"chosen": 2}, "the launcher chose 2 configurations for small"),
        ({"committed": plain(tile=5)}, "has changed since small was tuned"),
        ({"facets": {"itemsize": 3}}, "choose_config raised KeyError"),
    ],
)
def test_without_an_entry_the_best_is_printed(change, said, tables, write):
    rows = [("TileConfig(tile=2)", 3.0), ("TileConfig(tile=32, warps=4)", 1.0)]
    text = write(measured("small", {}, plain(tile=32, warps=4), rows) | change)
    assert said in text
    assert '    "sm_90": TileConfig(tile=2),' in text
    assert tables.file.read_text() == tables.text


def test_no_gain_is_not_written(tables, write):
    rows = [("TileConfig(tile=2)", 1.005), ("TileConfig(tile=32, warps=4)", 1.0)]
    assert "keep the committed one" in write(measured("small", {}, plain(tile=32, warps=4), rows))
    assert tables.file.read_text() == tables.text


def test_choosers_are_watched_together():
    import types

    module = types.ModuleType("kernel")
    exec(
        "def choose_alone(arch, size):\n    return 'alone' if size > 9 else None\n"
        "def choose_config(arch, *, sizes):\n    return choose_alone(arch, sizes[0]) or 'together'\n"
        "def choose_part(rows):\n    return rows\n",
        vars(module),
    )
    with suites.watched_choice(module) as choice:
        module.choose_alone("sm_90", 1)
        assert choice.config is None
        module.choose_config("sm_90", sizes=[1, 2])
        assert (choice.chooser, choice.facets) == ("choose_config", {"sizes": [1, 2]})
        module.choose_config("sm_90", sizes=[10])
        module.choose_alone("sm_90", 10)
        module.choose_part(3)
    assert (choice.chooser, choice.facets) == ("choose_alone", {"size": 10})
    assert choice.configs == ["together", "alone"]
