"""What this project's own runs of pytest need."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

MODELS = Path(__file__).resolve().parent / "models"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave models of billions of parameters out, unless `models` is named: `pytest models --arch sm_90`."""
    paths = [Path(argument.partition("::")[0]).resolve() for argument in config.option.file_or_dir or ()]
    if any(path.is_relative_to(MODELS) for path in paths):
        return
    large = [item for item in items if item.path.is_relative_to(MODELS) and _is_large(item)]
    if large:
        config.hook.pytest_deselected(items=large)
        items[:] = [item for item in items if item not in large]


def _is_large(item: pytest.Item) -> bool:
    task = getattr(item, "task", None)
    return task is not None and task.case.speed
