"""The files of a study: rows as JSON, with which a later run goes on, rows as CSV, and pages."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from pytest_cutile.reports.html.plots import picture
from pytest_cutile.reports.html.templates import text_of
from pytest_cutile.words.quantities import counted
from pytest_cutile.words.timing import Regime
from studies.running.study import BaseRecord, Record, Study, TimedRow, Timing
from tools.gpu_runs.runs import write_document

if TYPE_CHECKING:
    from markupsafe import Markup

ROWS = "rows.json"

AnyRecord = TypeVar("AnyRecord", bound=BaseRecord)


def read_record(file: Path, new: AnyRecord) -> AnyRecord:
    """Return what an interrupted run of the same study in the same environment stored, else `new`.

    Raises:
        SystemExit: The stored rows are of another environment, or unreadable.
    """
    if not file.exists():
        return new
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=type(new))
    except msgspec.MsgspecError as error:
        raise SystemExit(f"{file}: {error}; move it away, or choose another --output") from error
    before, current = (
        {"study": record.study, "--quick": f"{record.quick}", **record.environment}
        for record in (stored, new)
    )
    differing = [
        f"{name} {before.get(name, 'none')} (now {current.get(name, 'none')})"
        for name in {**before, **current}
        if before.get(name) != current.get(name)
    ]
    if differing:
        raise SystemExit(
            f"{file} has rows that are not comparable with those of this run: {', '.join(differing)}; "
            "choose another --output"
        )
    return stored


def store_record(file: Path, record: BaseRecord) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_document(file, msgspec.to_builtins(record))


def write_pages(folder: Path, study: Study, record: Record) -> list[Path]:
    """Write the files that people read; return them."""
    return write_texts(folder, {"rows.csv": rows_csv(record), **study.pages(record)})


def write_texts(folder: Path, pages: Mapping[str, str]) -> list[Path]:
    """Write texts to files by their names; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def rows_csv(record: Record) -> str:
    """Return a line for each row and regime."""
    lines = [line for row in record.rows for line in _csv_lines(row)]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]) if lines else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _csv_lines(row: TimedRow) -> Iterator[dict[str, Any]]:
    clocks = {Regime.BURST: row.clock_mhz, Regime.SUSTAINED: row.sustained_clock_mhz}
    for regime in Regime:
        if (timing := row.timing(regime)) is not None:
            yield {
                **({"kernel": row.kernel} if row.kernel else {}),
                "case": row.case,
                "contender": row.contender,
                "beside": row.beside,
                "regime": regime.value,
                "on_stream": bool(row.why_on_stream),
                "us_per_launch": timing.us,
                "tflops": timing.tflops,
                "gb_per_s": timing.gb_per_s,
                "speedup": timing.speedup,
                "speedup_error": timing.speedup_error,
                "sm_clock_mhz": clocks[regime],
            }


# -- parts of pages ---------------------------------------------------------------------------------


def origin(record: Record) -> str:
    """Return when, where and with what a record was measured, and what is not in it, as Markdown."""
    environment = ", ".join(f"{name} {value}" for name, value in record.environment.items())
    command = f"python -m studies {record.study}{' --quick' * record.quick}"
    lines = [
        f"Measured {record.date} on {environment}, by `{command}`.",
        "Every launch was compared with its float64 reference before it was timed.",
    ]
    if len(record.rows) < record.planned:
        part = f"**Part of it: {len(record.rows)} of {record.planned} rows.** The others were not timed"
        lines.insert(
            0, f"{part}, by --only, --budget, an interruption or an error: the same command goes on."
        )
    lines += [f"Not there: {name}: {why}." for name, why in record.missing.items()]
    lines += [f"Not timed: {key}: {why}" for key, why in record.errors.items()]
    on_stream = Counter(
        (f"{row.kernel}: {row.contender}".removeprefix(": "), row.why_on_stream)
        for row in record.rows
        if row.why_on_stream
    )
    lines += [
        f"Timed on a stream, as was what it is compared with, so its ratio alone counts: {contender} "
        f"({counted(count, 'case')}): {why}"
        for (contender, why), count in on_stream.items()
    ]
    return "\n\n".join(lines)


def timing_cells(timing: Timing | None) -> tuple[str, str, str]:
    """Return milliseconds, TFLOPS and speed-up as cells of a table."""
    if timing is None:
        return ("-", "-", "-")
    speedup = "-" if timing.speedup is None else f"{timing.speedup:.3f}"
    return f"{timing.us / 1000:.3f}", f"{timing.tflops:.1f}", speedup


def drawing(title: str, plots: Mapping[str, Markup]) -> str:
    """Return plots by their titles as one file of SVG; those without data are left out."""
    drawn = [(name, plot) for name, plot in plots.items() if plot]
    return picture(title, drawn, text_of("page.css"))


def to_json(document: Any) -> str:
    return json.dumps(document, indent=2) + "\n"
