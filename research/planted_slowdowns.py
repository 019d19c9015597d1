"""What the speed gate says of slowdowns that are planted in `kernels/`. Needs a GPU.

    python -m research.planted_slowdowns [-k fmha] [--repeat 1] [--json FILE]

In a clone of HEAD, one kernel at a time is made slower; results stay right. Then the gate runs with
`--perf-baseline=git:HEAD`, which measures today's kernel interleaved with the committed one. Printed are the
verdict of each case, the change in each regime where the gate found a slowdown, and the wall time of the run.
The edits are made for the configurations of an H200 (sm_90).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
REGIME = re.compile(r"^\s*(burst|sustained): time per launch .*?([+-]\d+\.\d) %\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Plant:
    """A slowdown: what is replaced by what in one file."""

    name: str
    file: str
    edits: tuple[tuple[str, str], ...]
    """Each text occurs once."""
    cases: str
    """Cases that become slower, as an expression of pytest's `-k`."""

    def changed(self, text: str) -> str:
        """Return the text of the file with the slowdown.

        Raises:
            ValueError: the file has changed, so that an edit has no place or several.
        """
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.file} has changed: it holds {old!r} {text.count(old)} times")
            text = text.replace(old, new)
        return text


def _twice(grid: str, rows: int) -> tuple[tuple[str, str], ...]:
    """Return the edits that compute so many of a thousand rows twice."""
    return (
        ("i = ct.bid(0)", "i = ct.bid(0) % ct.cdiv(X.shape[0], TILE_M)"),
        (grid, grid.replace("ct.cdiv(m, tile_m)", f"ct.cdiv(m, tile_m) * {1000 + rows} // 1000")),
    )


_BAND = (
    "say nothing.\n        MatmulConfig(\n            tile_m=256,\n            tile_n=256,\n"
    "            tile_k=64,\n            group_m={},"
)
_LOAD = "(row, k), (TILE_M, TILE_K), padding_mode=ct.PaddingMode.ZERO, latency=latency"
_TILE = "tile_n={},\n            tile_k=64,\n            group_m=16,\n            latency=6,"

PLANTS: Sequence[Plant] = (
    Plant(
        name="one head at a time",
        file="kernels/fmha.py",
        edits=(
            (
                "(2, True): replace(TWO_GROUPS, overlap=True, heads_together=8)",
                "(2, True): replace(TWO_GROUPS, overlap=True, heads_together=1)",
            ),
        ),
        cases="fmha and fp16 and causal",
    ),
    Plant(
        name="products that wait for the exponentials",
        file="kernels/fmha.py",
        edits=(
            (
                "(2, True): replace(TWO_GROUPS, overlap=True, heads_together=8)",
                "(2, True): replace(TWO_GROUPS, heads_together=8)",
            ),
        ),
        cases="fmha and fp16 and causal",
    ),
    *(
        Plant(
            name=f"{rows / 10:g} % of the rows twice",
            file="kernels/softmax.py",
            edits=_twice("softmax_rows, ct.cdiv(m, tile_m)", rows),
            cases="softmax",
        )
        for rows in (20, 30)
    ),
    Plant(
        name="3 % of the rows twice",
        file="kernels/rms_norm.py",
        edits=_twice("(ct.cdiv(m, tile_m),)", 30),
        cases="rms_norm",
    ),
    Plant(
        name="a step over padding",
        file="kernels/matmul.py",
        edits=(
            (
                "load_a, load_b, ct.cdiv(A.shape[1], TILE_K), TILE_M",
                "load_a, load_b, ct.cdiv(A.shape[1], TILE_K) + 1, TILE_M",
            ),
        ),
        cases="matmul",
    ),
    Plant(
        name="no TMA for A",
        file="kernels/matmul.py",
        edits=((_LOAD, f"{_LOAD}, allow_tma=False"),),
        cases="matmul",
    ),
    Plant(
        name="bands of one tile: more traffic at the same time",
        file="kernels/matmul.py",
        edits=((_BAND.format(8), _BAND.format(1)),),
        cases="matmul and (fp16 or bf16)",
    ),
    Plant(
        name="half the occupancy",
        file="kernels/dropout.py",
        edits=(("tile_elements=2048, occupancy=10", "tile_elements=2048, occupancy=5"),),
        cases="dropout and (fp16 or bf16)",
    ),
    Plant(
        name="a narrower tile",
        file="kernels/bmm.py",
        edits=((_TILE.format(256), _TILE.format(128)),),
        cases="bmm and 2048",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What the gate said of one case."""

    plant: str
    case: str
    verdict: str
    change_pct: float | None
    burst_pct: float | None = None
    """None where the gate prints no figure: it passed, or the regime was not measured."""
    sustained_pct: float | None = None
    run_seconds: float


def run_gate(project: Path, plant: Plant) -> list[Row]:
    """Run the gate in a clone in which `plant` is made, and return what it said."""
    junit = project / "junit.xml"
    junit.unlink(missing_ok=True)
    options = ["-q", "--arch", "native", "-m", "cutile_speed", "-k", plant.cases, f"--junit-xml={junit}"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--perf-baseline=git:HEAD", "kernels"],
        cwd=project,
        check=False,
        stdout=sys.stderr,
    )
    seconds = time.perf_counter() - began
    if done.returncode not in (0, 1):
        raise SystemExit(f"{plant.name}: pytest ended with status {done.returncode}")
    return [*read(junit, plant.name, seconds)]


def read(junit: Path, plant: str, seconds: float) -> Iterator[Row]:
    """Yield what a JUnit file says of each case."""
    for case in ET.parse(junit).iter("testcase"):  # noqa: S314 - our own file
        known = {one.get("name"): one.get("value") or "" for one in case.iter("property")}
        if "cutile.speed.verdict" not in known:
            continue
        text = "\n".join(failure.text or "" for failure in case.iter("failure"))
        regimes = {name: float(value) for name, value in REGIME.findall(text)}
        change = known.get("cutile.speed.change")
        yield Row(
            plant=plant,
            case=known["cutile.speed.key"],
            verdict=known["cutile.speed.verdict"],
            change_pct=100 * float(change) if change else None,
            burst_pct=regimes.get("burst"),
            sustained_pct=regimes.get("sustained"),
            run_seconds=seconds,
        )


def show(row: Row) -> str:
    figures = (row.change_pct, row.burst_pct, row.sustained_pct)
    changes = "".join(f"{'' if value is None else f'{value:+.1f} %':>11}" for value in figures)
    return f"{row.plant[:30]:30} {row.case[:44]:44} {row.verdict:13}{changes}{row.run_seconds:9.0f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m research.planted_slowdowns", description=__doc__)
    parser.add_argument("-k", default="", help="only slowdowns whose name or file has this")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for what was printed")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    print(f"{'planted':30} {'case':44} {'verdict':13}{'change':>11}{'burst':>11}{'sustained':>11}{'run':>11}")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(project)], check=True)  # noqa: S607
        for plant in [plant for plant in PLANTS if options.k in f"{plant.name} {plant.file}"]:
            file = project / plant.file
            committed = file.read_text(encoding="utf-8")
            file.write_text(plant.changed(committed), encoding="utf-8")
            for _ in range(options.repeat):
                for row in run_gate(project, plant):
                    print(show(row), flush=True)
                    rows.append(row)
            file.write_text(committed, encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
