"""Documented examples and how-tos, run as they are typed, with no GPU: a timer plays its part."""

import glob
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_cutile.cli import main
from tests.pages import ROOT, blocks_of, files_of, missing_lines
from tests.plugin.conftest import Project
from tests.plugin.forked import run_forked

pytestmark = pytest.mark.slow

NOT_RUN = (
    ("architectures", "--arch all", "takes seconds for each architecture; test_baselines_static does it"),
    ("architectures", "--arch native", "needs a GPU"),
    ("baselines", "--arch native", "needs a GPU: the pretended timer is no GPU that is at hand"),
    ("gate-a-tuned-kernel", "cutile_static", "compiles each configuration; test_tuned.py gates a tuner"),
    ("ci", "-n auto", "starts a process for each core; test_workflow.py runs what projects call"),
    ("ci", "@cases.txt", "needs a GPU"),
    ("ci", "--reason", "needs a GPU; test_accept_a_slowdown runs the same options"),
    ("ci", "--arch all", "takes seconds for each architecture; test_baselines_static does it"),
    ("several-gpus", "-n 4", "four processes take seconds to start; test_xdist.py runs one and two"),
    ("several-gpus", "--dist each", "needs other machines"),
    ("bisect", "bisect", "test_bisect.py bisects"),
    ("compare-tune-profile", "tools|--arch native", "needs a GPU; tests/tools pretends one"),
    ("profile", "profile", "needs a GPU and Nsight Compute; tests/commands/test_profile.py pretends both"),
    (
        "report-a-compiler-fault",
        "reproduce",
        "takes minutes; test_reproduce.py tries a script in place of tileiras",
    ),
    ("language-models", "bench", "needs a GPU; tests/models/test_bench.py times tiny models"),
    ("language-models", "pytest models", "takes minutes; tests/plugin/test_models.py gates a small one"),
    (
        "run-a-model-with-kernels",
        "models.check",
        "needs a GPU; tests/models/test_whole.py checks tiny models",
    ),
    ("find-weak-checks", "--search", "takes the seconds that it names; test_search.py searches"),
    ("find-weak-checks", "--sanitize", "needs a GPU; test_sanitize.py pretends compute-sanitizer"),
)
"""Commands of how-tos that are not run here: page, what the command has, reason."""
RUN = {*re.findall(r'commands\("([\w-]+)"', Path(__file__).read_text(encoding="utf-8"))}
"""How-tos whose other commands are run here."""


def commands_of_page(page: str, *programs: str) -> list[list[str]]:
    """Return the words of the commands of some programs that a how-to shows."""
    return [
        words
        for block in blocks_of(f"docs/how-to/{page}.md")
        if block.language in ("shell", "console")
        for words in block.commands
        if words[0] in programs
    ]


@pytest.mark.parametrize("page", sorted(path.stem for path in (ROOT / "docs" / "how-to").glob("*.md")))
def test_a_command_of_a_how_to_is_run_or_has_its_reason(page):
    patterns = [pattern for of, pattern, _ in NOT_RUN if of == page]
    commands = map(" ".join, commands_of_page(page, "pytest", "pytest-cutile", "python"))
    left = [command for command in commands if not any(re.search(one, command) for one in patterns)]
    assert page in RUN or left == []


class HowTo:
    """A how-to, and a way to run its commands in a project."""

    def __init__(self, pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str]) -> None:
        self._pytester, self._capsys = pytester, capsys

    def commands(self, page: str, *renamed: tuple[str, str]) -> list[list[str]]:
        """Return a page's commands of pytest and pytest-cutile that can be run, with names replaced."""
        commands = commands_of_page(page, "pytest", "pytest-cutile")
        for _, pattern, _ in (entry for entry in NOT_RUN if entry[0] == page):
            left_out = [words for words in commands if re.search(pattern, " ".join(words))]
            assert left_out, f"{page} has no command {pattern!r}"
            commands = [words for words in commands if words not in left_out]
        for old, new in renamed:
            commands = [[word.replace(old, new) for word in words] for words in commands]
        return commands

    def run(self, words: Sequence[str], status: int = 0) -> str:
        """Run a command in the project; return what it prints."""
        program, *arguments = words
        if program == "pytest":
            result = run_forked(self._pytester, *arguments)
            found, output = int(result.ret), result.stdout.str()
        else:
            self._capsys.readouterr()
            expanded = [path for word in arguments for path in sorted(glob.glob(word)) or [word]]  # noqa: PTH207
            found, output = main(expanded), self._capsys.readouterr().out
        assert found == status, output
        return output


@pytest.fixture
def pretended(paired: Project) -> Project:
    """A project whose kernel has a baseline, a timer that stands in for a GPU, and nothing to compile."""
    ini = paired.path / "tox.ini"
    ini.write_text(f"{ini.read_text()}\naddopts = -m 'cutile_correct or cutile_speed'\n")
    return paired


@pytest.fixture
def how_to(pytester, capsys, monkeypatch) -> HowTo:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return HowTo(pytester, capsys)


def shown(page: str, language: str) -> list[str]:
    return [block.text for block in blocks_of(page) if block.language == language]


def run_script(page: str, has: str, folder: Path) -> None:
    """Run the one block of a page's commands that has a text in a shell."""
    (script,) = [text for text in shown(page, "shell") if has in text]
    environment = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", script], cwd=folder, env=environment, check=True)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


# -- examples to paste ------------------------------------------------------------------------------------


def test_the_example_of_the_readme_passes_when_pasted(how_to, pytester):
    files = files_of("README.md")
    assert set(files) == {"row_softmax.py", "pytest.ini"}
    write(pytester.path, {**files, **files_of("docs/reference/fixtures.md")})
    recorded = how_to.run(["pytest", "--update-baselines"])
    assert (pytester.path / "baselines" / "sm_121-static.json").exists()
    assert "test_row_softmax.py" in recorded
    gated = how_to.run(["pytest"])
    assert re.search(r"^kernel +cases +right +compiles +changed +time$", gated, re.MULTILINE)
    assert re.search(r"^softmax +2 +1, 1 not measured +2 +no +\S+ s$", gated, re.MULTILINE)
    assert "not measured" in gated


def test_the_tutorial_finds_its_bug_and_the_fix(how_to, pytester):
    page = "docs/tutorial/first-kernel.md"
    files = files_of(page)
    failure, clue, spills = shown(page, "text")
    (summary,) = shown(page, "console")
    _, fix, change = shown(page, "python")
    write(pytester.path, files)
    wrong = how_to.run(["pytest", "-k", "37x1000", "-v"], status=1)
    assert missing_lines(failure + clue, wrong) == []
    fixed = re.sub(r"padding_mode=[\w.]+", fix.strip(), files["row_softmax.py"])
    write(pytester.path, {"row_softmax.py": fixed})
    assert missing_lines(summary, how_to.run(["pytest"])) == []
    how_to.run(["pytest", "--update-baselines", "-m", "cutile_static"])
    write(pytester.path, {"row_softmax.py": fixed.replace("@ct.kernel", change.splitlines()[0])})
    assert missing_lines(spills, how_to.run(["pytest", "-m", "cutile_static"], status=1)) == []


def test_the_timer_of_the_how_to_times(how_to, pytester):
    write(pytester.path, files_of("docs/how-to/write-a-timer.md"))
    test = "def test_time(perf):\n    assert perf(sorted, list(range(20_000))).device.name == 'host'\n"
    write(pytester.path, {"test_time.py": test})
    assert "1 passed" in how_to.run(["pytest", "--arch", "sm_121", "-p", "no:benchmark"])


# -- how-tos ----------------------------------------------------------------------------------------------


def test_report(how_to, pretended):
    """The kernel is slower than its baseline, so that the page has all of its parts."""
    other = pretended.path / "other" / "baselines"
    shutil.copytree(ROOT / "baselines", other)
    html, stored, joined, stored_json, run_json, again, *benchmark = how_to.commands("report")
    pretended.times(44.0)
    how_to.run(html, status=1)
    page = (pretended.path / "report.html").read_text()
    parts = re.findall(r"^\| (\w[\w ]+) \|", (ROOT / "docs/how-to/report.md").read_text(), re.MULTILINE)
    assert parts[0] == "part"
    for part in parts[1:]:
        assert re.search(rf">\s*{part}\s*<", page), part
    how_to.run(stored)
    assert (pretended.path / "site" / "index.html").exists()
    how_to.run(joined)
    how_to.run(stored_json)
    how_to.run(run_json, status=1)
    how_to.run(again)
    assert "scale" in (pretended.path / "page.html").read_text()

    autosave, compare, histogram, saved_json = benchmark
    pretended.times(40.2)
    how_to.run(autosave)
    table = how_to.run(compare)
    assert "speed[n8] baseline" in table
    assert "(NOW)" in table
    how_to.run(histogram)
    assert (pretended.path / "histogram-scale.svg").exists()
    how_to.run(saved_json)
    assert "burst_us" in (pretended.path / "benchmark.json").read_text()


def test_compare_platforms(how_to, pytester):
    shutil.copytree(ROOT / "baselines", pytester.path / "baselines")
    shutil.copy(ROOT / "baselines" / "sm_121-nvidia-gb10.json", pytester.path / "GB10.json")
    shutil.copy(ROOT / "baselines" / "sm_103-nvidia-b300-sxm6-ac.json", pytester.path / "B300.json")
    text, page, plots, markdown = how_to.commands("compare-platforms")
    assert "memory bandwidth" in how_to.run(text).lower()
    how_to.run(page)
    how_to.run(plots)
    assert "prefers-color-scheme: dark" in (pytester.path / "page.html").read_text()
    assert (pytester.path / "plots.svg").read_text().startswith("<svg")
    assert "\n| ---" in how_to.run(markdown)


@pytest.mark.usefixtures("static")
def test_architectures(how_to):
    gates, report = how_to.commands("architectures", ("softmax", "mm"))
    assert "5 passed, 1 skipped" in how_to.run(gates)  # compile and static twice, correct once; no GPU
    printed = how_to.run(report)
    for shown in ("registers", "spills", "shared memory", "blocks per SM", "sm_90", "sm_121"):
        assert shown in printed


@pytest.mark.usefixtures("static")
def test_new_gpu(how_to):
    (look,) = how_to.commands("new-gpu", ("matmul", "mm"))
    printed = how_to.run(look)
    for shown in ("sm_120", "blocks per SM", "spills"):
        assert shown in printed


def test_baselines_static(how_to, static):
    record, *_ = how_to.commands("baselines", ("all", "sm_90,sm_121"))  # each costs seconds
    how_to.run(record)
    recorded = {path.name for path in static.baseline.parent.iterdir()}
    assert recorded == {"sm_90-static.json", "sm_121-static.json"}


def conflict(project: Project) -> None:
    """Leave a merge of two branches that have recorded the same case."""
    for branch, us in (("theirs", 40.0), ("ours", 40.1)):
        project.git("checkout", "-q", "-f", "-b", branch, "main")
        project.times(us)
        project.run("--update-baselines")
        project.commit()
    with pytest.raises(subprocess.CalledProcessError):
        project.git("merge", "theirs")


def test_baselines(how_to, pretended, monkeypatch):
    _, revision, merge, resolve, history = how_to.commands("baselines")
    pretended.commit()
    pretended.edit("return x + x", "return x + x + 0")
    assert "+0.0 %" in how_to.run(revision)
    for runner, us in (("runner-1", 40.0), ("runner-2", 40.1)):
        pretended.times(us)
        pretended.run("--update-baselines")
        (pretended.path / runner).mkdir()
        shutil.copy(pretended.baseline, pretended.path / runner)
        pretended.git("checkout", "baselines")
    how_to.run(merge)
    assert len(pretended.records) == 3
    assert resolve == ["pytest-cutile", "merge", "theirs.json", *merge[-2:]]
    conflict(pretended)
    run_script("docs/how-to/baselines.md", "MERGE_HEAD", pretended.path)
    assert len(pretended.records) == 3
    monkeypatch.chdir(ROOT)
    (output,) = shown("docs/how-to/baselines.md", "console")
    assert missing_lines(output, how_to.run(history)) == []


def test_accept_a_slowdown(how_to, pretended):
    pretended.times(44.0)
    (accept,) = how_to.commands("accept-a-slowdown", ("softmax", "scale"))
    how_to.run([word for word in accept if word != "--reason" and " " not in word], status=1)
    how_to.run(accept)
    assert "fp32 accumulation" in pretended.git("diff", "baselines")


def test_find_weak_checks(how_to, static):
    mutants, inputs, layouts = how_to.commands("find-weak-checks", ("kernels", "mykernels"))
    assert re.search(r"^mutant +killed", how_to.run(mutants), re.MULTILINE)
    how_to.run(layouts)
    static.change(('params={"n": 256}', 'params={"n": 32}, speed=False'))
    assert "correct[n256-outliers]" in how_to.run([*inputs, "-v", "-k", "outliers"])


def test_interpret_without_a_gpu(how_to, pytester):
    page = "docs/how-to/interpret-without-a-gpu.md"
    write(pytester.path, {**files_of("README.md"), **files_of(page)})
    everything, interpreted = how_to.commands("interpret-without-a-gpu", ("CASE", "37x1000-small"))
    assert "correct was checked by interpretation on the CPU" in how_to.run(everything)
    how_to.run(interpreted)
    done = subprocess.run(
        [sys.executable, "invert.py"], cwd=pytester.path, capture_output=True, text=True, check=True
    )
    assert "58 of 250 elements of y" in done.stdout
    assert "[192] first, [249] last" in done.stdout
    assert re.search(r"lhs\W+1\b.*rhs\W+0\b", done.stdout, re.DOTALL)


def test_read_a_wrong_result(how_to, pytester):
    write(pytester.path, files_of("README.md"))
    line = files_of("README.md")["row_softmax.py"].partition("e = ct.exp")[0].count("\n") + 1
    renamed = (("CASE", "37x1000-small"), ("FILE:LINE", f"row_softmax.py:{line}"))
    watch, block, orders = how_to.commands("read-a-wrong-result", *renamed)[:3]
    assert f"row_softmax.py:{line}" in how_to.run(watch)
    assert "one-block" in how_to.run([*block, "-v"])
    how_to.run(orders)


def test_ci(how_to, static):
    """Cases for GPUs are listed where a change made their compiled code another one."""
    static.record()
    origin = static.project.path.parent / "origin"
    static.project.commit()
    static.project.git("clone", "-q", "--bare", ".", str(origin))
    static.project.git("remote", "add", "origin", str(origin))
    static.project.git("fetch", "-q", "origin")
    static.change(("64, 64, 32", "64, 64, 64"))
    (listing,) = how_to.commands("ci")
    run_script("docs/how-to/ci.md", listing[1], static.project.path)
    cases = (static.project.path / "cases.txt").read_text().splitlines()
    assert "mykernels/mm.py::speed[n256]" in cases
