import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_cutile import Work
from pytest_cutile.baselines.entries import Entry, Published, SpeedBaselines
from pytest_cutile.baselines.files import read_speed, render_speed
from pytest_cutile.cli import main
from pytest_cutile.reports.platforms import compare_platforms, platform_document
from pytest_cutile.words.platforms.published import B300, GB10
from pytest_cutile.words.text import render_lines
from research.published_baselines import published_files
from tests.baselines.examples import baselines, record, run, session

BASELINES = Path(__file__).parents[1] / "baselines"
COMPUTE = Work(flops=1e12, bytes=1e8, dtype="float16")
MEMORY = Work(bytes=1e9, dtype="bfloat16")


@pytest.fixture
def published(tmp_path) -> list[str]:
    """Return files with what was published, GB10 first; those of the repository may hold measurements."""
    return [write(tmp_path / f"{file.arch}.json", file) for file in published_files()]


def entry(burst_us: float = 40.0, *, work: Work = MEMORY, day: int = 1, **changes) -> Entry:
    return Entry(records=(record(day, burst_us, work=work, **changes),))


def figure(median_us: float, work: Work = MEMORY) -> Entry:
    return Entry(published=Published(work=work, median_us=median_us, margin=0.1, source="a document"))


def file(gpu: str = GB10, arch: str = "sm_121", **entries: Entry) -> SpeedBaselines:
    return baselines({f"{name}[c]": each for name, each in entries.items()}, arch=arch, gpu=gpu)


def write(path: Path, content: SpeedBaselines) -> str:
    path.write_text(render_speed(content))
    return str(path)


def report(
    first: SpeedBaselines, second: SpeedBaselines, labels: tuple[str, str] = ("a.json", "b.json")
) -> str:
    return report_of([first, second], labels)


def report_of(files: list[SpeedBaselines], labels: Sequence[str]) -> str:
    document = platform_document(compare_platforms(files, labels))
    return "\n".join(line.text for line in render_lines(document.blocks))


def row(text: str, start: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return line.split()


def test_faster_is_above_one():
    text = report(file(k=entry(40.0)), file(B300, "sm_103", k=entry(20.0)))
    assert row(text, "k ") == ["k", "c", "GB/s", "2.5e+04", "5e+04", "2.00x"]


def test_times_are_of_one_regime():
    runs = {"both": (run(40.0, sustained_us=80.0),), "long": (run(None, sustained_us=80.0),), "none": ()}
    others = {"both": entry(20.0), "long": entry(runs=(run(None, sustained_us=20.0),)), "none": entry(20.0)}
    apart = entry(runs=(run(None, sustained_us=80.0),)), entry(20.0)
    one = file(GB10, "sm_121", apart=apart[0], **{name: entry(runs=each) for name, each in runs.items()})
    text = report(one, file(B300, "sm_103", apart=apart[1], **others))
    assert row(text, "both ")[3:] == ["2.5e+04", "5e+04", "2.00x"]
    assert row(text, "long ")[2:] == ["GB/s,", "sustained", "1.25e+04", "5e+04", "4.00x"]
    assert "not compared, no times in one regime: apart[c], none[c]" in text


def test_metrics_and_geometric_means():
    one = file(a=entry(40.0), b=entry(80.0), c=entry(10.0, work=COMPUTE), d=entry(10.0, work=Work()))
    other = file(
        "NVIDIA H200",
        "sm_90",
        a=entry(20.0),
        b=entry(10.0),
        c=entry(1.0, work=COMPUTE),
        d=entry(5.0, work=Work()),
    )
    text = report(one, other)
    means = [line.split()[2:] for line in text.splitlines() if line.strip().startswith("geometric mean")]
    assert means == [
        ["2", "cases", "GB/s", "4.00x"],
        ["1", "case", "TFLOPS", "10.0x"],
        ["1", "case", "launches/s", "2.00x"],
    ]


def test_a_metric_without_a_ratio_has_no_mean():
    files = [file(a=entry()), file(B300, "sm_103", b=entry()), file("NVIDIA H200", "sm_90", b=entry())]
    text = report_of(files, ("a.json", "b.json", "c.json"))
    assert row(text, "b ")[:3] == ["b", "c", "GB/s"]
    assert "geometric mean" not in text


def test_published_figures_are_marked():
    text = report(file(k=figure(40.0, COMPUTE)), file("NVIDIA H200", "sm_90", k=entry(20.0, work=COMPUTE)))
    assert row(text, "k ")[3:] == ["2.5e+04p", "5e+04", "2.00x"]
    assert "p: a published figure" in text


def test_cases_that_cannot_be_compared_are_counted_and_named():
    one = file(a=entry(), b=entry(), c=entry(), d=entry())
    other = file("NVIDIA H200", "sm_90", a=entry(), b=entry(work=COMPUTE), e=entry())
    text = report(one, other)
    assert "cases not compared: 2 only of GB10, 1 only of H200" in text
    assert "not compared, other work: b[c]" in text


def test_nothing_in_common():
    text = report(file(a=entry()), file("NVIDIA H200", "sm_90", b=entry()))
    assert "nothing to compare" in text
    assert "geometric mean" not in text


def test_an_unknown_gpu_has_no_limits():
    text = report(file("NVIDIA Next", "sm_90", a=entry()), file("NVIDIA H200", "sm_90", a=entry()))
    assert row(text, "SMs") == ["SMs", "-", "132"]


def test_two_files_of_one_gpu_can_be_told_apart():
    text = report(file(a=entry()), file(a=entry()))
    assert "GB10 #1" in text
    assert "GB10 #2" in text


def test_ratios_of_another_shape_are_marked():
    one, other = file(matmul=entry(20.0, work=COMPUTE)), file(B300, "sm_103", matmul=entry(1.0, work=COMPUTE))
    text = report(one, other)
    assert row(text, "matmul")[-2:] == ["20.0x", "~18.9x"]
    assert "~ of another shape" in " ".join(text.split())
    assert "MatMul (8192)" not in text
    assert row(text, "RMSNorm (4096)")[-1] == "33.1x"


def test_published_ratios_turn_with_the_platforms():
    one, other = file(matmul=entry(20.0, work=COMPUTE)), file(B300, "sm_103", matmul=entry(1.0, work=COMPUTE))
    assert row(report(other, one), "matmul")[-2:] == ["0.0500x", "~0.0529x"]


def test_other_platforms_get_no_published_ratios():
    text = report(file(matmul=entry()), file("NVIDIA H200", "sm_90", matmul=entry()))
    assert "Qwen2" not in text
    assert "published" not in text
    assert row(text, "memory  ")[1:] == ["128", "GB", "LPDDR5x", "141", "GB", "HBM3e", "1.10x"]


def test_lengths_are_sorted_as_numbers(capsys, published):
    assert main(["compare", *published]) == 0
    cases = [
        line.split()[1] for line in capsys.readouterr().out.splitlines() if line.strip().startswith("fmha ")
    ]
    assert [case.split("x")[2] for case in cases] == ["1024", "2048", "4096", "8192", "16384"]


def test_the_first_comparison_needs_no_measurement(capsys, published):
    assert main(["compare", *published]) == 0
    text = capsys.readouterr().out
    assert "13.0x      13.7x" in text
    assert row(text, "memory bandwidth")[-1] == "29.3x"
    assert row(text, "qwen2-7b ")[-4:] == ["tokens/s", "18.52p", "257.3p", "13.9x"]
    assert row(text, "Qwen2-7B, fmha_kernel, 28 calls")[-3:] == ["4185.9p", "337.9p", "12.4x"]


def test_at_most_100_columns():
    name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    long = {f"kernel_{'k' * 60}": entry(), "b" * 70: entry()}
    one, other = file(name, "sm_120", **long, c=entry()), file("NVIDIA H100 80GB HBM3", "sm_90", **long)
    other.entries["b" * 70 + "[c]"] = entry(work=COMPUTE)  # type: ignore[index]
    labels = ("/very/long/" + "x" * 120, "b.json")
    for pair in ((one, other), (other, one), (file(k=entry()), file(B300, "sm_103", k=entry()))):
        assert max(map(len, report(*pair, labels).splitlines())) <= 100


def test_markdown(capsys, published):
    assert main(["compare", *published, "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| kernel | case | metric | GB10 | B300 SXM6 AC | ratio | published |" in lines
    assert "| --- | --- | --- | ---: | ---: | ---: | ---: |" in lines
    assert "| fmha | fp16-causal-4x32x8192x128 | TFLOPS | 88.9p | 1159p | 13.0x | 13.7x |" in lines


def test_merge_makes_the_file_and_says_what_was_added(tmp_path, capsys):
    one = write(tmp_path / "one.json", file(a=entry(day=1), b=entry(), p=figure(3.0)))
    other = write(tmp_path / "other.json", file(a=entry(day=2)))
    into = tmp_path / "new" / "all.json"
    assert main(["merge", one, other, "--into", str(into)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a[c]  new: +2 sessions",
        "b[c]  new: +1 session",
        "p[c]  new: a published figure",
        f"{into}: 3 cases, 3 changed",
    ]
    assert read_speed(into) == file(
        a=Entry(records=(*entry(day=1).records, *entry(day=2).records)), b=entry(), p=figure(3.0)
    )
    assert [path.name for path in into.parent.iterdir()] == ["all.json"]


def test_merge_says_what_was_dropped(tmp_path, capsys):
    """A slower record is added like any other: a record carries its own reason, and the gate decides."""
    old = Entry(records=(*entry(day=1).records, *entry(day=2).records))
    into = write(tmp_path / "into.json", file(a=old, b=entry(day=1)))
    accepted = record(3, 80.0, 80.0, 80.0, work=MEMORY, moved="accepted", reason="x")
    newer = [accepted, *(record(day, 80.0, 80.0, 80.0, work=MEMORY) for day in range(4, 8))]
    one = write(tmp_path / "one.json", file(a=Entry(records=tuple(newer))))
    assert main(["merge", one, "--into", into]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "a[c]  +5 sessions, 1 old session dropped",
        f"{into}: 2 cases, 1 changed",
    ]


def test_merge_takes_no_reason(tmp_path, capsys):
    there = write(tmp_path / "one.json", file(a=entry()))
    with pytest.raises(SystemExit) as stopped:
        main(["merge", there, "--into", there, "--reason", "exact division"])
    assert stopped.value.code == 2
    assert "--reason" in capsys.readouterr().err


def test_merging_twice_changes_nothing(tmp_path, capsys):
    one = write(tmp_path / "one.json", file(a=entry(day=1), b=figure(3.0)))
    into = write(tmp_path / "into.json", file(a=entry(day=2), c=entry()))
    assert main(["merge", one, "--into", into]) == 0
    before = Path(into).stat()
    capsys.readouterr()
    assert main(["merge", one, into, "--into", into]) == 0
    assert capsys.readouterr().out == f"{into}: 3 cases, 0 changed\n"
    assert Path(into).stat().st_mtime_ns == before.st_mtime_ns
    assert Path(into).stat().st_ino == before.st_ino


def failure(capsys, *arguments: str) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return str(line)


def test_other_platforms_are_not_merged(tmp_path, capsys):
    one = write(tmp_path / "one.json", file(a=entry()))
    other = write(tmp_path / "other.json", file("NVIDIA Thor", "sm_110", a=entry()))
    into = write(tmp_path / "into.json", file(a=entry()))
    before = Path(into).read_text()
    said = failure(capsys, "merge", one, other, "--into", str(tmp_path / "new.json"))
    assert f"{other} is about NVIDIA Thor (sm_110), and {one} about NVIDIA GB10 (sm_121)" in said
    assert not (tmp_path / "new.json").exists()
    assert "NVIDIA Thor" in failure(capsys, "merge", other, "--into", into)
    assert Path(into).read_text() == before


def test_a_session_that_two_files_tell_otherwise_is_named_with_both(tmp_path, capsys):
    one = write(tmp_path / "one.json", file(a=entry()))
    into = write(tmp_path / "into.json", file(a=entry(44.0)))
    before = Path(into).read_text()
    said = failure(capsys, "merge", one, "--into", into)
    assert f"{one}, {into}: session s1 is there twice with different content: a[c]: runs is " in said
    assert "nothing was written" in said
    assert Path(into).read_text() == before


def test_a_session_of_a_clock_that_is_wrong(tmp_path, capsys):
    """Its runs would be the newest ones for ever."""
    there = baselines({"a[c]": entry()}, {"s1": session(at="2999-01-01T00:00:00+00:00")})
    one = write(tmp_path / "one.json", there)
    said = failure(capsys, "merge", one, "--into", str(tmp_path / "new.json"))
    assert f"{one}: session s1 is of 2999-01-01T00:00:00+00:00, later than now" in said


def test_a_missing_file(tmp_path, capsys):
    there = write(tmp_path / "one.json", file(a=entry()))
    missing = str(tmp_path / "missing.json")
    assert missing in failure(capsys, "compare", there, missing)
    assert missing in failure(capsys, "merge", there, missing, "--into", there)


def test_a_conflict(tmp_path, capsys, published):
    path = tmp_path / "x.json"
    path.write_text("{\n<<<<<<< ours\n")
    assert f"{path}:2: merge conflict" in failure(capsys, "compare", str(path), str(path))
    assert "merge conflict" in failure(capsys, "merge", published[0], "--into", str(path))


@pytest.mark.parametrize("schema", [0, 2])
def test_another_schema(tmp_path, capsys, schema):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"schema": schema}))
    assert f"schema {schema}, this release reads 1" in failure(capsys, "compare", str(path), str(path))


def test_static_baselines(tmp_path, capsys, published):
    static = str(BASELINES / "sm_121-static.json")
    assert "static baselines" in failure(capsys, "compare", published[0], static)
    assert "static baselines" in failure(capsys, "merge", static, "--into", str(tmp_path / "x.json"))
    assert "static baselines" in failure(
        capsys, "merge", published[0], "--into", str(tmp_path / "a-static.json")
    )


def test_a_folder(tmp_path, capsys):
    there, folder = write(tmp_path / "one.json", file(a=entry())), str(tmp_path)
    for words in (
        ("compare", folder, there),
        ("merge", folder, "--into", there),
        ("merge", there, "--into", folder),
    ):
        assert f"{folder} is a folder: give a file in it" in failure(capsys, *words)


def test_a_file_that_no_run_would_read_is_not_written(tmp_path, capsys):
    there, into = write(tmp_path / "one.json", file(a=entry())), tmp_path / "baselines.txt"
    assert "end in .json" in failure(capsys, "merge", there, "--into", str(into))
    assert not into.exists()


def test_the_module_is_a_command_and_imports_nothing_heavy(published):
    code = (
        "import sys, runpy; sys.argv = ['pytest-cutile', 'compare', *sys.argv[1:]]\n"
        "try: runpy.run_module('pytest_cutile', run_name='__main__')\n"
        "except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'torch', 'pytest', '_pytest', 'cuda', 'cuda.tile', 'pynvml'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *published], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "geometric mean" in result.stdout


def test_a_reader_that_has_enough_makes_no_noise(published):
    """As `| head` does, which closes its end."""
    read, write_end = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest_cutile", "compare", *published],
            stdout=write_end,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 141


def test_history_takes_a_part_of_a_name(capsys, tmp_path):
    write(tmp_path / "sm_121.json", file(softmax=entry(), matmul=entry()))
    assert main(["history", "max", "--baselines", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "softmax[c] on NVIDIA GB10 (sm_121)" in printed
    assert "matmul" not in printed


def test_history_of_nothing_says_what_there_is(capsys, tmp_path):
    write(tmp_path / "sm_121.json", file(softmax=entry(), matmul=entry()))
    assert main(["history", "fmha", "--baselines", str(tmp_path)]) == 2
    assert "no case has 'fmha' in its name; it knows matmul, softmax" in capsys.readouterr().err
    assert main(["history", "fmha", "--baselines", str(tmp_path / "nowhere")]) == 2
    assert "there is no such file or folder" in capsys.readouterr().err
