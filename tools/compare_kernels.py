"""Time the kernels in `kernels/` beside TileGym and what a PyTorch user would call, in one run.

    python -m tools.compare_kernels [matmul ...] [--case fp16] [--device 0,1] [--json F] [--markdown F]
    python -m tools.compare_kernels --processes 4 --budget 1500 --json F     # GPU time is scarce
    python -m tools.compare_kernels --from F [F ...] --markdown FILE.md

Each case of `tools/suite/NAME.py`: our kernel with its committed configuration, checked against its
float64 reference, and every installed peer, interleaved under the speed gate's timer (cold L2).
A peer that computes something else is marked, one that raises is listed with its reason, and a figure above
what the chip can do is called impossible. With `--processes` several cases are prepared at a time, and timed
one after the other (`tools/comparison/gpu_access.py`). `--from` renders what other runs wrote, and needs no
GPU: of a case that several have, what the newest measured; of one day, the last one named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pytest_cutile.words.timing import Timer
from tools.comparison.case import start_comparing
from tools.comparison.page import case_text, merged, page, summary_text
from tools.comparison.stream_timer import StreamTimer
from tools.gpu_runs.measure import MakeTimer, gpu_timer
from tools.gpu_runs.runs import Job, add_options, positive, require_gpus, run_jobs, select_jobs
from tools.gpu_runs.suites import peer_names, select

CASE_SECONDS = 300.0
"""After so long a case is given up: torch.compile may try many algorithms, but not for ever."""


def main(
    argv: Sequence[str] | None = None,
    *,
    make_timer: MakeTimer = gpu_timer,
    make_stream_timer: Callable[[Timer], Timer] = StreamTimer,
) -> int:
    """Compare what the command line names; return 1 if a case could not be compared."""
    options = _parse(argv)
    if options.source:
        documents = sorted(map(_read, options.source), key=lambda document: str(document["date"]))
        complete = True
    else:
        jobs = select_jobs(options)  # a name that is none is said first
        if make_timer is gpu_timer:
            require_gpus(options.device)
        start = partial(
            start_comparing,
            devices=options.device,
            processes=options.processes,
            make_timer=make_timer,
            make_stream_timer=make_stream_timer,
            without=options.without,
        )
        document, complete = run_jobs(
            jobs,
            options,
            start,
            _show_case,
            case_seconds=CASE_SECONDS * options.processes,  # they wait for each other
            processes=options.processes,
        )
        documents = [document]
    if measured := any(document["cases"] for document in documents):
        print("\n" + summary_text(merged(documents)))
    else:
        print("\nNothing was measured, so nothing can be said of the goals.")
    if options.markdown:
        options.markdown.write_text(page(documents, everything=select((), "")), encoding="utf-8")
    return 0 if complete and measured else 1


def _read(file: Path) -> dict[str, Any]:
    """Read what a run wrote with `--json`.

    Raises:
        SystemExit: there is no such file, or it holds something else.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"--from {file}: {error}") from error
    if not isinstance(document, dict) or "cases" not in document:
        raise SystemExit(f"--from {file}: this is not what --json writes")
    return document


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.compare_kernels", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="file of tools/suite, or file[case; default: all"
    )
    add_options(parser)
    parser.add_argument(
        "--processes",
        type=positive,
        default=1,
        metavar="N",
        help="that prepare cases for each GPU, of which one times at a time (1)",
    )
    parser.add_argument("--without", default="", metavar="PEER,...", help="peers to leave out")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    parser.add_argument(
        "--from", dest="source", type=Path, nargs="+", metavar="FILE", help="measure nothing: read these"
    )
    options = parser.parse_args(argv)
    options.without = [name.strip() for name in options.without.split(",") if name.strip()]
    if options.source and (options.names or options.case or options.without or options.json):
        parser.error("--from measures nothing: NAME, --case, --without and --json are for what is measured")
    if options.without:
        known = peer_names(options.names)
        if wrong := [name for name in options.without if name not in known]:
            parser.error(f"--without: there is no {', '.join(wrong)}; there are: {', '.join(known)}")
    return options


def _show_case(job: Job, case_result: Mapping[str, Any]) -> None:
    del job  # the text says which it is
    print("\n" + case_text(case_result))


if __name__ == "__main__":
    sys.exit(main())
