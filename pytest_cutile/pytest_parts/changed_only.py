"""Tests that need not run: of cases whose code is that of the baselines, or of another revision."""

from __future__ import annotations

import pytest

from pytest_cutile.pytest_parts.run import PytestRun
from pytest_cutile.words.quantities import counted


class ChangedOnly:
    """Deselects tests of unchanged code: of every gate with `--changed-only`, of speed with `git:REV`."""

    def __init__(self, run: PytestRun) -> None:
        self._run = run

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what need not run; last, because only what is selected is compiled."""
        from pytest_cutile.baselines.errors import BaselineError
        from pytest_cutile.gates.revisions.modules import RevisionError
        from pytest_cutile.gates.speed.unchanged import unchanged
        from pytest_cutile.pytest_parts.collection import DeclaredTest
        from pytest_cutile.pytest_parts.deferred import measures

        run, settings = self._run, self._run.settings
        tasks = {
            item.nodeid: item.task
            for item in items
            # Code that is the same in both revisions is as fast in both.
            if isinstance(item, DeclaredTest) and (settings.changed_only or measures(item))
        }
        number, count = run.worker_place or (0, 1)
        try:
            left_out = unchanged(run.session, tasks, start_at=number / count % 1)
        except (BaselineError, RevisionError, pytest.UsageError) as error:
            if run.worker:  # an error here would end the worker; a gate reports it instead
                return
            if isinstance(error, pytest.UsageError):
                raise
            revision = f"--perf-baseline git:{settings.baseline_revision}"
            raise pytest.UsageError(
                f"{'--changed-only' if settings.changed_only else revision}: {error}"
            ) from error
        run.progress.over()
        run.results.left_out = [tasks[nodeid].key for nodeid in left_out]
        if left_out:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
            items[:] = [item for item in items if item.nodeid not in left_out]

    def pytest_report_collectionfinish(self) -> list[str]:
        run = self._run
        left_out = run.results.left_out
        if run.settings.xdist_worker or not left_out:
            return []
        revision = run.session.revision_kernels
        baseline = "in the baselines" if revision is None else f"in {revision}"
        tests = counted(len(left_out), "test" if run.settings.changed_only else "speed test")
        return [f"cutile: {tests} left out, of cases that compile to the same {baseline}"]
