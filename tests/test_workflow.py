"""The workflow that other projects copy: what its required check lets through."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

JOBS = yaml.safe_load((Path(__file__).parents[1] / ".github/workflows/kernels.yml").read_text())["jobs"]
CASES = '[{"name": "H200", "arch": "sm_90", "runner": ["self-hosted", "gpu-h200"]}]'


def gate(static: str, gpu: str, platforms: str) -> "subprocess.CompletedProcess[str]":
    """Run the script of the job `gate` as GitHub would, the results of the other jobs given."""
    (step,) = JOBS["gate"]["steps"]
    needs: dict[str, Any] = {
        "${{ needs.static.result }}": static,
        "${{ needs.gpu.result }}": gpu,
        "${{ needs.static.outputs.platforms }}": platforms,
    }
    environment = {name: needs[value] for name, value in step["env"].items()}
    return subprocess.run(
        ["bash", "-e", "-c", step["run"]],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("static", "gpu", "platforms", "passes"),
    [
        ("success", "success", CASES, True),
        ("success", "skipped", "[]", True),
        ("success", "skipped", CASES, False),  # of a fork, or no GPU runners
        ("success", "skipped", "", False),  # what changed is not known
        ("success", "failure", CASES, False),
        ("success", "cancelled", CASES, False),
        ("success", "cancelled", "[]", False),
        ("failure", "skipped", "[]", False),
        ("failure", "skipped", CASES, False),
        ("failure", "success", CASES, False),
        ("cancelled", "skipped", "", False),
        ("skipped", "skipped", "[]", False),
    ],
)
def test_the_gate_is_green_only_if_the_changed_cases_were_measured(static, gpu, platforms, passes):
    done = gate(static, gpu, platforms)
    assert (done.returncode == 0) == passes, done.stdout + done.stderr


def test_a_gate_without_measurements_says_what_to_do():
    said = gate("success", "skipped", CASES).stdout
    assert "::error::" in said
    assert "docs/how-to/ci.md" in said
    assert "CUTILE_GPU_RUNNERS" in said
    assert "::error::" not in gate("success", "skipped", "[]").stdout


def test_the_gate_runs_whatever_became_of_the_other_jobs():
    assert JOBS["gate"]["if"] == "always()"
    assert JOBS["gate"]["needs"] == ["static", "gpu"]
