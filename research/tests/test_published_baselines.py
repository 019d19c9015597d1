from pathlib import Path

import pytest

from pytest_cutile.baselines.entries import Published, SpeedBaselines
from pytest_cutile.baselines.files import read_speed, speed_path
from pytest_cutile.words.platforms.lookup import find_platform
from pytest_cutile.words.platforms.published import B300, GB10, QWEN2_7B, RATIOS, SPECIFICATIONS
from research.published_baselines import published_files, with_published
from research.published_figures import (
    FMHA_B300,
    FMHA_GB10,
    LADDER_GB10,
    MARGIN,
    Figure,
    fmha_work,
    nvidia_flops,
)
from tests.baselines.examples import baselines, entry

ROOT = Path(__file__).parents[2]
GENERATION, NAIVE = "qwen2-7b[generate-16x50]", "qwen2-7b_naive[generate-16x50]"
FILES = {file.gpu: file for file in published_files()}


def committed(gpu: str) -> SpeedBaselines:
    file = read_speed(speed_path(ROOT / "baselines", FILES[gpu].arch, gpu))
    assert file is not None
    return file


def published(gpu: str, key: str) -> Published:
    figure = FILES[gpu].entries[key].published
    assert figure is not None
    return figure


@pytest.mark.parametrize("gpu", FILES)
def test_the_committed_files_are_what_the_script_writes(gpu):
    file, entries = committed(gpu), FILES[gpu].entries
    assert file.arch == FILES[gpu].arch
    # What was measured since stays in place of what was published.
    assert {key for key, case in file.entries.items() if case.published} <= entries.keys()
    for key, case in entries.items():
        assert file.entries[key].records or file.entries[key] == case


def test_the_script_leaves_measurements_alone():
    file = FILES[GB10]
    key = FMHA_GB10[0].key
    measured = baselines({key: entry()}, arch=file.arch, gpu=file.gpu)
    assert with_published(measured, file).entries == {**file.entries, key: entry()}
    assert with_published(baselines({}, arch=file.arch, gpu=file.gpu), file) == file


@pytest.mark.parametrize("figure", [*FMHA_B300, *LADDER_GB10], ids=lambda figure: f"{figure.tflops}")
def test_the_printed_times_and_tflops_agree_by_nvidias_count(figure: Figure):
    assert figure.latency_ms is not None
    digits = len(f"{figure.latency_ms:g}".partition(".")[2])
    assert round(figure.time_us / 1000, digits) == figure.latency_ms


def test_nvidia_counts_half_of_the_square_and_we_the_diagonal_too():
    for length in (1024, 16384):
        assert fmha_work(length).flops / nvidia_flops(length) == pytest.approx(1 + 1 / length, rel=1e-12)


def test_the_published_work_is_that_of_the_kernel():
    if not (ROOT / "kernels" / "fmha.py").exists():
        pytest.skip("kernels/fmha.py is not there")
    pytest.importorskip("cuda.tile")
    from importlib import import_module

    spec = import_module("kernels.fmha").SPEC
    cases = {f"{spec.name}[{case.name}]": case for case in spec.cases}
    timed = [figure for figure in (*FMHA_GB10, *FMHA_B300) if figure.key in cases]
    # 16384 is not timed here: to check it takes a reference of 1.7e10 scores in float64.
    assert {figure.length for figure in timed} == {1024, 2048, 4096, 8192}
    for figure in timed:
        assert cases[figure.key].speed
        assert spec.work_of(cases[figure.key]) == fmha_work(figure.length)
    for ratio in RATIOS:
        assert not ratio.key or ratio.key in cases


def test_the_margin_is_twice_what_the_document_disagrees_with_itself():
    by_length = {figure.length: figure.tflops for figure in FMHA_GB10}
    (b300,) = [figure for figure in FMHA_B300 if figure.length == 8192]
    (said,) = [ratio.ratio for ratio in RATIOS if ratio.key == b300.key]
    disagreement = said / (b300.tflops / by_length[8192]) - 1
    assert 2 * disagreement == pytest.approx(MARGIN, abs=0.005)
    figures = [case.published for file in FILES.values() for case in file.entries.values()]
    assert {figure.margin for figure in figures if figure} == {MARGIN}


def test_the_printed_speedups_follow_from_the_figures():
    printed = [14.6, 12.4, 10.9, 20.5, 21.4, 21.3]
    assert [round(pair.ratio, 1) for pair in QWEN2_7B] == printed
    spark, b300 = (published(gpu, GENERATION).median_us for gpu in (GB10, B300))
    assert round(spark / b300, 1) == 13.9


def test_a_generations_time_is_the_printed_one():
    # 800 tokens over the printed seconds are the printed tokens/s.
    figures = [published(GB10, key) for key in (GENERATION, NAIVE)]
    assert [round(figure.median_us / 1e6, 1) for figure in figures] == [43.2, 51.1]
    assert all(figure.work.amounts == {"tokens/s": 800} for figure in figures)


def test_platforms_are_in_the_table_of_limits():
    for gpu in (GB10, B300):
        platform, printed = find_platform(gpu), SPECIFICATIONS[gpu]
        assert platform is not None
        assert platform.arch == printed.arch
        assert platform.memory_bandwidth_gb_s == printed.bandwidth_gb_s
    # CUDA reports 148, and 288 GB: research/reports/published-figures.md
    assert (SPECIFICATIONS[B300].sm_count, SPECIFICATIONS[B300].memory_gb) == (132, 192)


def test_the_memory_of_b300_is_what_cuda_reports():
    b300 = find_platform(B300)
    assert b300 is not None
    assert b300.cuda_reports is not None
    assert b300.memory == "288 GB HBM3e"
    assert b300.cuda_reports.memory_gib * 2**30 == pytest.approx(288e9, rel=1e-3)


def test_no_published_figure_is_above_the_limit_of_its_chip():
    for file in FILES.values():
        platform = find_platform(file.gpu)
        assert platform is not None
        for case in file.entries.values():
            figure = case.published
            assert figure is not None
            seconds = figure.median_us * 1e-6
            assert figure.work.flops / seconds < platform.dense_tflops["float16"] * 1e12
            assert figure.work.bytes / seconds < platform.memory_bandwidth_gb_s * 1e9
