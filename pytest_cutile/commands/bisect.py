"""`pytest-cutile bisect CASE --good REV`: find the commit since which a case is slower, or its code worse.

`git bisect run` walks the history in a worktree of its own. For each commit, `--step` runs the gate `speed`
or `static` on the one case, with `--perf-baseline=git:REV`: the kernels of both commits are measured
interleaved on this GPU, or compiled and compared with no GPU at all. This installation of pytest-cutile
judges all commits.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_cutile.gates.revisions.git import Repository, RevisionError, git, git_environment
from pytest_cutile.words.document import printable
from pytest_cutile.words.temporary import temporary_folder
from pytest_cutile.words.verdicts import Verdict

HELP = "find the commit since which a case is slower, or its compiled code worse"

GOOD, BAD, CANNOT_TELL = 0, 1, 125
"""Exit status of a step, as `git bisect run` reads it; 125 leaves the commit out."""
STATUS: Mapping[str, int] = {Verdict.PASS: GOOD, Verdict.IMPROVEMENT: GOOD, Verdict.REGRESSION: BAD}
ONLY_SKIPPED_LEFT = 2
"""Exit status of `git bisect run` when what is left cannot be told apart."""
MOST_LINES = 60
"""Lines of a commit's changes that are printed."""
_NO_KEYWORD = re.compile(r"[^\w:+\-.\\/]+")
"""What pytest takes as no part of a word in an expression after `-k`, and brackets."""
_OPERATORS = ("and", "or", "not", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("case", help="key of a declared case: softmax[bf16-4096x8192]; or a test's id")
    parser.add_argument("--good", required=True, metavar="REV", help="a commit where the case was good")
    parser.add_argument(
        "--bad", default="HEAD", metavar="REV", help="a commit where it is bad (default: HEAD)"
    )
    parser.add_argument(
        "--gate",
        choices=("speed", "static"),
        default="speed",
        help="what got worse: speed is measured on this GPU (the default), static needs none",
    )
    parser.add_argument("--arch", help="architecture (default: the GPU's, else the ini option cutile_arch)")
    parser.add_argument(
        "--step",
        action="store_true",
        help="judge the checkout in this folder alone, as `git bisect run` asks: exit status 0, 1 or 125",
    )


def run(options: argparse.Namespace) -> tuple[int, list[str]]:
    bisection = Bisection(case=options.case, good=options.good, gate=options.gate, arch=options.arch)
    try:
        if not options.step:
            return bisection.search(options.bad)
        step = bisection.judge(Path.cwd())
        return step.status, step.text.splitlines()
    except (RevisionError, OSError, ValueError) as error:
        # `git bisect run` would take 1 for a bad commit.
        return CANNOT_TELL if options.step else BAD, [f"pytest-cutile bisect: {error}"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the gate says of one commit."""

    verdict: str
    """"" if it says nothing."""
    text: str
    """The failure, or else the end of what pytest printed."""

    @property
    def status(self) -> int:
        return STATUS.get(self.verdict, CANNOT_TELL)


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """A question about commits: whether a case is worse there than at a good one."""

    case: str
    good: str
    gate: str
    arch: str | None

    def judge(self, folder: Path) -> Step:
        """Run the gate on the checkout in `folder`, against the good commit."""
        if not folder.is_dir():
            return Step(verdict="", text="the commit has no folder of this name")
        with temporary_folder() as temporary:
            written = Path(temporary) / "report.json"
            done = subprocess.run(  # noqa: S603 - no shell
                [*self._pytest, f"--perf-baseline=git:{self.good}", f"--kernel-json={written}"],
                cwd=folder,
                check=False,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            report = json.loads(written.read_bytes()) if written.exists() else {}
        failures = (
            failure["text"]
            for failure in report.get("failures", ())
            if any(self._names(result["key"]) for result in failure["results"])
        )
        printed = "\n".join(done.stdout.strip().splitlines()[-MOST_LINES:])
        return Step(verdict=self._verdict(report), text=next(failures, printed))

    @property
    def _pytest(self) -> list[str]:
        """The command that runs the gate on the case."""
        # -P: a project's own folder would hide this installation from the project's old commits.
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        if self.arch is not None:
            command += ["--arch", self.arch]
        if "::" in self.case:
            return [*command, self.case]
        command += ["-m", f"cutile_{self.gate}"]
        words = [word for word in _NO_KEYWORD.split(self.case) if word not in _OPERATORS]
        return [*command, "-k", " and ".join(words)]

    def _verdict(self, report: Mapping[str, Any]) -> str:
        """Return the verdict on the case, of several architectures the worst; "" if there is none."""
        results = (result for case in report.get("cases", ()) for result in case["results"])
        verdicts = [
            result["verdict"]
            for result in results
            if result["gate"] == self.gate and self._names(result["key"])
        ]
        if not verdicts and any(self._names(key) for key in report.get("unchanged", ())):
            return Verdict.PASS  # it compiles to the good commit's code, and was left out
        return max(verdicts, key=lambda verdict: verdict == Verdict.REGRESSION, default="")

    def _names(self, key: str) -> bool:
        """Say whether a key is this case's; of a test's id nothing else was run."""
        return key == self.case or "::" in self.case

    def search(self, bad: str) -> tuple[int, list[str]]:
        """Search between the good commit and `bad`; return exit status and lines."""
        repository = Repository(Path.cwd())
        good_commit, bad_commit = repository.commit(self.good), repository.commit(bad)
        failure = f"git finds no common ancestor of {self.good} and {bad}"
        fork = git(repository.top, "merge-base", good_commit, bad_commit, failure=failure)
        if fork != good_commit:
            raise RevisionError(
                f"{self.good} is no ancestor of {bad}, and a search needs one that is. "
                f"They fork at {fork[:12]}: try --good {fork[:12]}"
            )
        fixed = replace(self, good=good_commit)
        with _worktree(repository, bad_commit) as tree:
            folder = tree / repository.prefix
            step = fixed.judge(folder)
            if step.status != BAD:
                status, said = self._without_search(step, bad)
                return status, [said, *step.text.splitlines()]
            git(tree, "bisect", "start", bad_commit, good_commit, failure="git bisect cannot start")
            arguments = [self.case, f"--good={good_commit}", f"--gate={self.gate}", "--step"]
            arguments += [] if self.arch is None else [f"--arch={self.arch}"]
            script = ["sh", "-c", f'cd "$1" || exit {CANNOT_TELL}; shift; exec "$@"', "sh", str(folder)]
            command = [sys.executable, "-P", "-m", "pytest_cutile.cli", "bisect", *arguments]
            status = _walk(tree, [*script, *command])
            if status == ONLY_SKIPPED_LEFT:
                return CANNOT_TELL, _candidates(tree)
            if status:
                raise RevisionError(f"`git bisect run` ended with status {status} before it found a commit")
            first = git(tree, "rev-parse", "refs/bisect/bad", failure="git bisect found no commit")
            return GOOD, [*fixed.explained(tree, folder, first)]

    def _without_search(self, step: Step, bad: str) -> tuple[int, str]:
        """Return exit status and message where the bad commit is not known to be worse."""
        if not step.verdict:
            return BAD, f"the gate {self.gate} judged no case {self.case!r} at {bad}: is that its whole name?"
        said = f"{self.good}: the gate {self.gate} says {step.verdict}"
        if step.status == GOOD:
            return BAD, f"{bad} is not worse than {said}"
        return CANNOT_TELL, f"{bad} could not be compared with {said}"

    def explained(self, tree: Path, folder: Path, first: str) -> Iterator[str]:
        """Yield which commit it is, what the gate says of it alone, and the lines that it changed."""
        failure = f"git cannot show {first}"
        commit = git(tree, "show", "-s", "--format=%h %s (%an, %as)", first, failure=failure)
        yield f"first bad commit: {commit}"
        git(tree, "checkout", "-q", "--detach", first, failure=failure)
        if self.gate == "speed":
            yield from self.judge(folder).text.splitlines()[:1]
        alone = replace(self, good=f"{first}^", gate="static").judge(folder)
        yield ""
        yield f"compiled code, against {first[:12]}^:"
        said = alone.text if alone.status == BAD else alone.verdict or "it cannot be compared"
        yield from said.partition("\nReproduce")[0].splitlines()
        options = ("-U0", "--no-color", "--no-ext-diff")
        diff = git(tree, "diff", *options, f"{first}^", first, "--", str(folder), failure=failure)
        changed = diff.splitlines()
        yield ""
        yield from changed[:MOST_LINES]
        if len(changed) > MOST_LINES:
            yield f"... {len(changed) - MOST_LINES} more lines: git show {first[:12]}"


def _walk(tree: Path, command: Sequence[str]) -> int:
    """Let git walk the history by a command, show which commits it tries, and return its exit status."""
    with subprocess.Popen(  # noqa: S603 - no shell of ours
        ["git", "bisect", "run", *command],  # noqa: S607 - the git that the user has
        cwd=tree,
        env=git_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as walk:
        try:
            for line in walk.stdout or ():
                if line.startswith(("Bisecting: ", "[")):
                    print(printable(line.rstrip()), file=sys.stderr)  # noqa: T201
        except BaseException:
            walk.terminate()
            raise
    return walk.returncode


def _candidates(tree: Path) -> list[str]:
    failure = "git cannot list the commits that are left"
    good = git(tree, "for-each-ref", "--format=%(objectname)", "refs/bisect/good-*", failure=failure).split()
    left = git(tree, "log", "--format=  %h %s", "refs/bisect/bad", "--not", *good, failure=failure)
    return ["the gate could not judge some commits; the first bad one is one of:", *left.splitlines()]


@contextmanager
def _worktree(repository: Repository, commit: str) -> Iterator[Path]:
    """Check a commit out in a folder of its own, so that the user's stays as it is.

    The folder is removed also when the process is told to end, as by `timeout` or a cancelled job.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with temporary_folder() as temporary:
        tree = Path(temporary).resolve() / "tree"
        failure = f"git cannot check out {commit}"
        git(repository.top, "worktree", "add", "-q", "--detach", str(tree), commit, failure=failure)
        try:
            yield tree
        finally:
            failure = f"git cannot remove its worktree {tree}"
            git(repository.top, "worktree", "remove", "--force", str(tree), failure=failure)
            signal.signal(signal.SIGTERM, before)
