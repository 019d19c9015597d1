"""Report formats: files that a run writes when it ends, each with an option of its own.

pytest imports this module at every start, so a format imports what it renders with when it renders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_cutile.reports.cases import RunOutcome

SUMMARY_BYTES = 256 * 1024
"""Size of the largest summary. GitHub takes 1 MiB for each step, and one step may run pytest several times.

Source: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""


class ReportFormat(NamedTuple):
    """A file that a run can write."""

    option: str
    """The command-line option that takes the file's path: "--kernel-csv"."""
    help: str
    render: Callable[[RunOutcome], str]
    appends: bool = False
    """Whether the text is appended to the file, which it replaces otherwise."""
    shows_code: bool = False
    """Whether it shows what was compiled, which results then keep."""
    needs: str = ""
    """Package that renders it, of the extra "report"; empty where none is needed."""


def render_job_summary(run: RunOutcome) -> str:
    from pytest_cutile.reports.job_summary import job_summary
    from pytest_cutile.reports.markdown import render_markdown

    return render_markdown(job_summary(run), limit_bytes=SUMMARY_BYTES)


def render_json(run: RunOutcome) -> str:
    from pytest_cutile.reports.report import report_of_run, to_json

    return to_json(report_of_run(run))


def render_html_page(run: RunOutcome) -> str:
    from pytest_cutile.reports.html import render_html
    from pytest_cutile.reports.report import report_of_run

    return render_html(report_of_run(run))


FORMATS = (
    ReportFormat(
        option="--kernel-summary",
        help="Append a Markdown summary of the run to PATH, failures first, such as "
        '--kernel-summary="$GITHUB_STEP_SUMMARY" for the page of a GitHub Actions job.',
        render=render_job_summary,
        appends=True,
    ),
    ReportFormat(
        option="--kernel-json",
        help="Write everything that the reports show of the run to PATH, as JSON with a versioned schema.",
        render=render_json,
        shows_code=True,
    ),
    ReportFormat(
        option="--kernel-html",
        help="Write a page about the run to PATH: failures, cases, plots, history, compiled code. It is one "
        "file that needs no network.",
        render=render_html_page,
        shows_code=True,
        needs="jinja2",
    ),
)
