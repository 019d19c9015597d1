"""The workflows that other projects copy or call: what they let through, and that their commands are real."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
JOBS = yaml.safe_load((ROOT / ".github/workflows/kernels.yml").read_text())["jobs"]
CALLED = yaml.safe_load((ROOT / ".github/workflows/kernel-gate.yml").read_text())
INPUTS = CALLED[True]["workflow_call"]["inputs"]  # YAML 1.1 reads the key `on` as true
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


def test_a_gpu_job_keeps_its_page_and_links_to_it(tmp_path):
    steps = {one.get("name") or one.get("id"): one for one in JOBS["gpu"]["steps"]}
    for name in ("Gate", "Record"):
        assert "--kernel-html=kernels.html" in steps[name]["run"]
    assert "kernels.html" in steps["artifact"]["with"]["path"].splitlines()
    link = steps["Link to the page"]
    assert link["env"] == {"ADDRESS": "${{ steps.artifact.outputs.artifact-url }}"}
    page = tmp_path / "page.md"
    environment = {"ADDRESS": "https://a/b", "GITHUB_STEP_SUMMARY": str(page)}
    subprocess.run(["bash", "-e", "-c", link["run"]], env=environment, check=True)
    assert page.read_text() == "\n[The page with plots and history](https://a/b)\n"


# -- the workflow that projects call --------------------------------------------------------------------


def step(
    name: str, folder: Path, *, programs: Path = Path(sys.executable).parent, **inputs: str
) -> "subprocess.CompletedProcess[str]":
    """Run the script of a step as GitHub would, with the defaults of the inputs that are not given."""
    (found,) = [one for one in CALLED["jobs"]["gate"]["steps"] if one.get("name") == name]
    values = {key: str(one.get("default", "")).lower() for key, one in INPUTS.items()} | inputs

    def value_of(match: "re.Match[str]") -> str:
        name = match[1]
        return values[name.removeprefix("inputs.")] if name.startswith("inputs.") else f"<{name}>"

    environment = {
        key: re.sub(r"\$\{\{ ([\w.-]+) \}\}", value_of, text) for key, text in found["env"].items()
    }
    github = {"GITHUB_STEP_SUMMARY": str(folder / "page.md"), "GITHUB_SHA": "abc", "RUNNER_TEMP": str(folder)}
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COV", "GIT"))}
    home = {"PATH": f"{programs}:{ours['PATH']}", "HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        ["bash", "-e", "-c", found["run"]],
        cwd=folder / found.get("working-directory", "."),
        env={**ours, **home, **github, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "test_one.py").write_text("def test_one(arch):\n    assert arch == 'sm_90'\n")
    (tmp_path / "test_other.py").write_text("def test_other():\n    assert False\n")
    return tmp_path


def test_the_gate_runs_with_its_defaults_and_leaves_page_json_and_summary(project):
    done = step("Gate", project, arch="sm_90", paths="test_one.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    made = {path.name for path in (project / "kernel-gate").iterdir()}
    assert made == {"index.html", "kernels.json", "summary.md", "junit.xml"}
    assert step("Summarize", project).returncode == 0
    page = (project / "page.md").read_text()
    assert page.startswith("[The page with plots and history, and the same as JSON](<steps.artifact.outputs")
    assert "## cuTile kernels: no case was run" in page


@pytest.mark.slow
def test_recording_is_asked_for_with_its_reason_and_place_and_a_failure_fails(project):
    done = step("Gate", project, arch="sm_90", record="true", reason="new driver", history="kept", options="")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout


def test_options_may_be_quoted_and_are_no_script(project):
    program = project / "bin" / "pytest"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    program.chmod(0o755)
    facts = {"record": "true", "reason": "new driver", "history": "kept"}
    options = "-k 'one and not two' $(touch made)"
    done = step("Gate", project, programs=program.parent, arch="sm_90", options=options, **facts)
    recording = ["--perf-baseline=.kernel-history/baselines", "--update-baselines", "--reason=new driver"]
    words = ["-k", "one and not two", "$(touch", "made)", *recording, "-ra", "--arch=sm_90"]
    assert done.stdout.splitlines()[: len(words)] == words
    assert not (project / "made").exists()


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=n", "-c", "user.email=e@localhost")
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_two_runners_keep_their_history_on_one_branch(tmp_path):
    """The branch is made as docs/how-to/ci.md says; the second runner's push comes too late for its clone."""
    origin = tmp_path / "origin"
    git(tmp_path, "init", "-q", "-b", "main", str(origin))
    page = (ROOT / "docs/how-to/ci.md").read_text()
    (command,) = re.findall(r"^    git push origin (.*kernel-history)$", page, re.MULTILINE)
    made = f"git -c user.name=n -c user.email=e@localhost push -q '{origin}' {command}"
    made = made.replace("git commit-tree", "git -c user.name=n -c user.email=e@localhost commit-tree")
    subprocess.run(["bash", "-ec", made], cwd=origin, check=True)
    for runner in ("a", "b"):
        (tmp_path / runner).mkdir()
        git(tmp_path, "clone", "-q", "-b", "kernel-history", str(origin), f"{runner}/.kernel-history")
    for runner in ("a", "b"):
        folder = tmp_path / runner
        assert step("Keep the history", folder, history="kernel-history").returncode == 0  # nothing to keep
        (folder / ".kernel-history" / "baselines").mkdir()
        (folder / ".kernel-history" / "baselines" / f"{runner}.json").write_text("{}\n")
        done = step("Keep the history", folder, history="kernel-history")
        assert done.returncode == 0, done.stderr
    kept = git(origin, "ls-tree", "-r", "--name-only", "kernel-history").splitlines()
    assert kept == ["baselines/a.json", "baselines/b.json"]


def test_the_lines_of_the_how_to_call_it_with_inputs_that_it_has():
    page = (ROOT / "docs/how-to/ci.md").read_text()
    calls = [
        job
        for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
        for job in (yaml.safe_load(block).get("jobs") or {}).values()
        if "kernel-gate.yml" in job.get("uses", "")
    ]
    required = {name for name, one in INPUTS.items() if one.get("required")}
    assert len(calls) > 1
    for call in calls:
        assert required <= call["with"].keys() <= INPUTS.keys()
