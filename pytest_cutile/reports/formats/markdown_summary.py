"""`--kernel-summary`: a page about the run as Markdown, for a CI job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_cutile.reports.formats import ReportFormat

if TYPE_CHECKING:
    from pytest_cutile.reports.cases import RunOutcome

LIMIT_BYTES = 256 * 1024
"""Size of the largest page. GitHub takes 1 MiB for each step, and one step may run pytest several times.

Source: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""


def render(run: RunOutcome) -> str:
    from pytest_cutile.reports.markdown import render_markdown
    from pytest_cutile.reports.page import page

    return render_markdown(page(run), limit_bytes=LIMIT_BYTES)


FORMAT = ReportFormat(
    option="--kernel-summary",
    help="Append a Markdown summary of the run to PATH, failures first, such as "
    '--kernel-summary="$GITHUB_STEP_SUMMARY" for the page of a GitHub Actions job.',
    render=render,
    appends=True,
)
