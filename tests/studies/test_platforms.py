"""The study of platforms: from files of baselines alone."""

import csv
import json

import pytest

from pytest_cutile import Work
from pytest_cutile.baselines.files import render_speed
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.platforms.published import B300, DOCUMENT, GB10, QWEN2_7B, RATIOS
from studies import __main__ as command
from studies.platforms.main import MEASURED, MIXED, PUBLISHED, compare, pages, scalings, specified
from tests.test_cli import COMPUTE, MEMORY, entry, figure, file


@pytest.fixture
def files(tmp_path):
    """Return a GB10, and a B300 that is ten times as fast by bytes and twenty times by operations."""
    work = {"copy": MEMORY, "product": COMPUTE}
    speeds = {"copy": 10.0, "product": 20.0}
    one = file(GB10, "sm_121", **{name: entry(40.0, work=work[name]) for name in work})
    other = file(B300, "sm_103", **{name: entry(40.0 / speeds[name], work=work[name]) for name in work})
    paths = [tmp_path / "gb10.json", tmp_path / "b300.json"]
    for path, content in zip(paths, (one, other), strict=True):
        path.write_text(render_speed(content))
    return paths


def test_kernels_scale_beside_what_the_hardware_promises(files):
    memory, product = scalings(compare(files)[MEASURED])
    assert (memory.kernel, memory.metric, memory.platform, memory.cases) == (
        "copy",
        "GB/s",
        "B300 SXM6 AC",
        1,
    )
    assert memory.ratio == pytest.approx(10.0)
    assert memory.specified == pytest.approx(8000 / 273, rel=0.01)
    assert memory.share == pytest.approx(10.0 * 273 / 8000, rel=0.01)
    assert product.ratio == pytest.approx(20.0)
    gpus = [find_platform(gpu) for gpu in (GB10, B300)]
    one, other = (gpu.dense_tflops["float16"] for gpu in gpus if gpu)
    assert product.specified == pytest.approx(other / one)


def test_the_files_keep_the_published_rows_with_their_source(files, tmp_path, capsys):
    output = tmp_path / "out"
    assert command.main(["platforms", *map(str, files), "--quick", "--output", str(output)]) == 0
    written = {name.rpartition("/")[2] for name in capsys.readouterr().out.split()}
    assert written == {"platforms.md", "platforms.svg", "rows.json", "rows.csv"}
    text = (output / "platforms" / "platforms.md").read_text()
    assert "| copy | measured | B300 SXM6 AC over GB10 | 1 (GB/s) | 10.0x | GB/s | 29.3x | 34 % |" in text
    assert "| RMSNorm (4096) | GB/s |  |  | 33.1x |" in text
    assert "| Qwen2-7B, fmha_kernel, 28 calls | ms | 4185.9p | 337.9p | 12.4x |" in text
    assert "What NVIDIA published" not in text  # not twice
    document = json.loads((output / "platforms" / "rows.json").read_text())
    (comparison,) = document["comparisons"]
    assert [platform["gpu"] for platform in comparison["platforms"]] == ["NVIDIA GB10", B300]
    assert document["published"]["source"] == DOCUMENT
    assert len(document["published"]["kernel_scaling"]) == len(RATIOS)
    assert len(document["published"]["qwen2_7b"]) == len(QWEN2_7B)
    with (output / "platforms" / "rows.csv").open() as lines:
        ratios = [(line["case"], round(float(line["over_first"]), 6)) for line in csv.DictReader(lines)]
    assert ratios == [("copy[c]", 1.0), ("copy[c]", 10.0), ("product[c]", 1.0), ("product[c]", 20.0)]


def test_the_published_rows_are_there_without_their_gpus(files, tmp_path):
    path = tmp_path / "h200.json"
    path.write_text(render_speed(file("NVIDIA H200", "sm_90", copy=entry(20.0))))
    text = pages([files[0], path])["platforms.md"]
    assert "| RMSNorm (4096) | GB/s | - | - | 33.1x |" in text
    assert "| Qwen2-7B, end to end, cuTile | tokens/s | 18.52 | 257.33 | 13.9x |" in text
    assert "| Qwen2-7B, end to end, PyTorch | tokens/s | 15.66 | - | - |" in text
    assert "| Qwen2-7B, fmha_kernel, 28 calls | ms | 4185.9 | 337.9 | 12.4x |" in text
    assert "| memory bandwidth | GB/s | 273 | 8000 | 29.3x |" in text


def test_work_is_promised_what_bounds_it():
    """Decoding counts operations, and is bounded by memory all the same."""
    h100, h200 = (find_platform(f"NVIDIA {name}") for name in ("H100 80GB HBM3", "H200"))
    decoding = Work(flops=4.29e9, bytes=537e6, dtype="bfloat16")
    assert specified(decoding, h200, h100) == pytest.approx(3350 / 4800)
    assert specified(COMPUTE, h200, h100) == pytest.approx(1.0)
    # Memory bounds the H100, and the peak rate the H200.
    between = Work(flops=250e9, bytes=1e9, dtype="float16")
    assert specified(between, h200, h100) == pytest.approx((250e9 / 989.4e12) / (1e9 / 3350e9))
    assert specified(Work(tokens=5.0), h200, h100) is None
    assert specified(decoding, h200, None) is None


def test_published_figures_are_not_divided_by_measured_ones(files, tmp_path):
    (tmp_path / "published.json").write_text(render_speed(file(GB10, copy=figure(50.0), third=figure(9.0))))
    published = tmp_path / "published.json"
    groups = compare([published, *files])
    assert {title: group.names for title, group in groups.items()} == {MEASURED: ["GB10", "B300 SXM6 AC"]}
    mixed = [published, files[1]]
    assert [*compare(mixed)] == [MIXED]
    text = pages(mixed)["platforms.md"]
    assert "No case is measured in two files, or published in two." in text
    assert "ratios below are of published and measured figures" in text
    assert "| copy | c | GB/s | 2e+04p | 2.5e+05 | 12.5x |" in text


def test_without_files_those_of_the_repository_are_compared():
    groups = compare([])
    assert groups[MEASURED].names == ["H100 80GB HBM3", "H200"]
    assert groups[PUBLISHED].names == ["GB10", "B300 SXM6 AC"]
    for group in groups.values():
        assert len({*group.paths}) == len(group.paths)
    text = pages([])["platforms.md"]
    assert text.startswith("# Platforms: H100 80GB HBM3 beside H200; GB10 beside B300 SXM6 AC\n")
    assert "| matmul | measured | H200 over H100 80GB HBM3 | 6 (TFLOPS) |" in text
    assert "| fmha | published | B300 SXM6 AC over GB10 | 5 (TFLOPS) |" in text
    assert "| 0 cases |" not in text


def test_a_file_is_not_compared_with_itself(files):
    with pytest.raises(SystemExit, match="one is given twice"):
        compare([*files, files[0]])


def test_one_file_is_not_enough(files):
    with pytest.raises(SystemExit, match="two files of baselines or more"):
        compare(files[:1])


def test_a_file_that_is_not_there_is_named(files):
    with pytest.raises(SystemExit, match=r"nowhere\.json: there is no such file"):
        compare([*files, files[0].with_name("nowhere.json")])


def test_cases_of_other_code_are_no_scaling_of_the_hardware(tmp_path):
    names = {"NVIDIA H100 80GB HBM3": "h100.json", "NVIDIA H200": "h200.json"}
    for (gpu, name), us, code in zip(names.items(), (40.0, 20.0), ("1-a", "1-b"), strict=True):
        same, other = entry(us, fingerprint="1-c"), entry(us, fingerprint=code)
        content = file(gpu, "sm_90", copy=same, product=other)
        (tmp_path / name).write_text(render_speed(content))
    paths = [tmp_path / name for name in names.values()]
    (scaling,) = scalings(compare(paths)[MEASURED])
    assert scaling.kernel == "copy"
    assert scaling.ratio == pytest.approx(2.0)
    text = pages(paths)["platforms.md"]
    assert "the code as much as of the hardware: product[c]." in text
    assert "| product |" not in text
