"""Platforms side by side: any number of them, as a page and as a picture, whatever their names."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pytest_cutile import Work
from pytest_cutile.cli import main
from pytest_cutile.reports.html.platforms import render_page, render_svg
from pytest_cutile.reports.platforms import compare_platforms, platform_document
from pytest_cutile.words.platforms.published import B300, GB10
from pytest_cutile.words.text import render_lines
from research.published_baselines import published_files
from tests.baselines.examples import baselines, entry, record
from tests.reports.test_html import HOSTILE, Page
from tests.test_cli import write

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
COMPUTE = Work(flops=1e12, bytes=1e8, dtype="float16")


def platform(gpu, arch, times_us, *, kernel="k", work=COMPUTE):
    entries = {f"{kernel}[{name}]": entry(record(1, us, work=work)) for name, us in times_us.items()}
    return baselines(entries, arch=arch, gpu=gpu)


def three(**times_us):
    platforms = ((GB10, "sm_121"), ("NVIDIA H200", "sm_90"), (B300, "sm_103"))
    return [
        platform(gpu, arch, {name: own[place] for name, own in times_us.items() if own[place]})
        for place, (gpu, arch) in enumerate(platforms)
    ]


def compared(files):
    return compare_platforms(files, [f"{number}.json" for number, _ in enumerate(files)])


def lines_of(files) -> list[list[str]]:
    return [line.text.split() for line in render_lines(platform_document(compared(files)).blocks)]


def titles(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return [one.text or "" for one in root.iter() if one.tag.endswith("title")]


@pytest.fixture
def published(tmp_path) -> list[str]:
    return [write(tmp_path / f"{file.arch}.json", file) for file in published_files()]


def test_a_row_has_a_ratio_for_each_platform_but_the_first():
    lines = lines_of(three(c=(40.0, 20.0, 8.0)))
    assert ["k", "c", "TFLOPS", "2.5e+04", "5e+04", "2.00x", "1.25e+05", "5.00x"] in lines
    assert ["geometric", "mean", "1", "case", "TFLOPS", "2.00x", "5.00x"] in lines


def test_a_case_of_two_platforms_leaves_the_third_one_blank():
    files = three(both=(40.0, 20.0, 8.0), without_first=(None, 20.0, 8.0), without_last=(40.0, 10.0, None))
    lines = lines_of(files)
    assert ["k", "without_first", "TFLOPS", "5e+04", "1.25e+05"] in lines
    assert ["k", "without_last", "TFLOPS", "2.5e+04", "1e+05", "4.00x"] in lines
    assert ["geometric", "mean", "2/1", "cases", "TFLOPS", "2.83x", "5.00x"] in lines


def test_a_platform_with_other_work_is_left_out_and_named():
    files = three(c=(40.0, 20.0, 8.0))
    files[1] = platform("NVIDIA H200", "sm_90", {"c": 20.0}, work=Work(bytes=1e9))
    lines = lines_of(files)
    assert ["k", "c", "TFLOPS", "2.5e+04", "1.25e+05", "5.00x"] in lines
    assert ["not", "compared,", "other", "work:", "k[c]"] in lines


def test_nvidias_ratios_are_of_its_two_platforms_wherever_they_stand():
    h200, gb10, b300 = (three(c=(40.0, 20.0, 8.0))[place] for place in (1, 0, 2))
    for files, ratio in (((h200, gb10, b300), "18.9x"), ((b300, h200, gb10), "0.0529x")):
        lines = lines_of(files)
        assert ["MatMul", "(8192)", "TFLOPS", ratio] in lines


def test_one_command_makes_the_page_of_dgx_spark_beside_b300(tmp_path, published, capsys):
    assert main(["compare", *published, "-o", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}: 2 platforms, 6 cases\n"
    page = Page((tmp_path / "page.html").read_text())
    for text in (
        "GB10 beside B300 SXM6 AC", "memory bandwidth 273 GB/s 8000 GB/s 29.3x",
        "memory 128 GB LPDDR5x 288 GB HBM3e 2.25x",
        "fmha fp16-causal-4x32x8192x128 TFLOPS 88.9p 1159p 13.0x 13.7x",
        "qwen2-7b generate-16x50 tokens/s 18.52p 257.3p 13.9x", "RoPE (16384) GB/s 22.8x",
        "fmha, fp16-causal-4x32xNx128: throughput over N",
    ):  # fmt: skip
        assert text in page.text
    labels = page.attributes("aria-label")
    assert any("peak fp16 9.00x" in one and "memory 29.3x" in one for one in labels)
    assert any("on GB10, B300 SXM6 AC" in one for one in labels)
    assert "script" not in [tag for tag, _ in page.tags]


def test_the_picture_has_the_plots_of_the_page(tmp_path, published):
    assert main(["compare", *published, "-o", str(tmp_path / "new" / "plots.svg")]) == 0
    found = titles((tmp_path / "new" / "plots.svg").read_text())
    assert "fp16-causal-4x32x8192x128: 13.0x" in found
    assert "Qwen2-7B, rope_kernel, published: 21.3x" in found
    assert "fp16-causal-4x32x16384x128 on B300 SXM6 AC: 1254 TFLOPS" in found


def test_the_picture_of_the_how_to_is_what_the_command_draws(tmp_path, published):
    assert main(["compare", *published, "-o", str(tmp_path / "plots.svg")]) == 0
    shown, drawn = (HOW_TO / "gb10-beside-b300.svg", tmp_path / "plots.svg")
    assert titles(shown.read_text()) == titles(drawn.read_text())


def test_the_plot_names_every_row_in_full_and_tells_whose_ratios_are_whose(tmp_path, published):
    assert main(["compare", *published, "-o", str(tmp_path / "plots.svg")]) == 0
    root = ET.fromstring((tmp_path / "plots.svg").read_text())
    texts = [one.text for one in root.iter() if one.tag.endswith(("}text", "}tspan"))]
    assert "Qwen2-7B, attention_decode_kernel_grouped" in texts
    assert ".." not in "".join(filter(None, texts))
    assert {"● of both files", "○ NVIDIA's ratios"} <= {*texts}
    hollow = [one for one in root.iter() if one.get("class") == "hollow"]
    assert len(hollow) == sum("published" in (one[0].text or "") for one in hollow) == 12


@pytest.mark.parametrize(("suffix", "start"), [(".md", "GB10: "), (".txt", "GB10: ")])
def test_words_can_be_written_too(tmp_path, published, suffix, start):
    path = tmp_path / f"page{suffix}"
    assert main(["compare", *published, "-o", str(path)]) == 0
    assert path.read_text().startswith(start)
    assert ("| --- |" in path.read_text()) == (suffix == ".md")


def test_hostile_names_are_nothing_but_text():
    cases = {f"{HOSTILE}{n}x64": 1e4 / n for n in (8, 16, 32)}
    files = [
        platform(f"{HOSTILE}{arch}", arch, cases, kernel=HOSTILE.replace("[", "("))
        for arch in ("sm_90", "sm_121")
    ]
    comparison = compare_platforms(files, [HOSTILE, HOSTILE])
    page, svg = render_page(comparison), render_svg(comparison)
    for text in (page, svg):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "script" not in [tag for tag, _ in Page(page).tags]
    assert Page(page).text.count("<script>alert('x')</script>") > 5
    tags = [one.tag.rpartition("}")[2] for one in ET.fromstring(svg).iter()]
    assert {*tags} <= {"svg", "style", "rect", "text", "tspan", "g", "path", "circle", "title"}
    assert any("<script>alert('x')</script>" in one for one in titles(svg))


def test_nothing_in_common_is_a_page_without_plots():
    files = [platform("NVIDIA Next", "sm_90", {"a": 1.0}), platform("NVIDIA H200", "sm_90", {"b": 1.0})]
    assert "nothing to compare" in Page(render_page(compared(files))).text
    assert titles(render_svg(compared(files))) == []


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("page.pdf", "ends in .html, .svg, .md, .txt"),
        ("taken/page.html", "taken is full or cannot be written: File exists"),
    ],
)
def test_what_cannot_be_written_is_one_message(tmp_path, published, capsys, output, message):
    (tmp_path / "taken").write_text("")
    assert main(["compare", *published, "-o", str(tmp_path / output)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
