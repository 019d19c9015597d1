"""With pytest-benchmark, the same samples reach its table, JSON, compare and histogram."""

import json

import pytest

from tests.plugin.forked import run_forked

pytest.importorskip("pytest_benchmark")


def test_the_json_holds_the_samples_of_the_gate(project):
    project.times([40.0, 41.0, 42.0, 43.0, 44.0])
    project.run("--benchmark-json=out.json").assert_outcomes(passed=2)
    data = json.loads((project.path / "out.json").read_text())
    (benchmark,) = data["benchmarks"]
    assert benchmark["fullname"] == "mykernels/scale.py::speed[n8]"
    assert benchmark["stats"]["data"] == pytest.approx([40e-6, 41e-6, 42e-6, 43e-6, 44e-6] * 8)
    assert benchmark["extra_info"]["gb_per_s"] == pytest.approx(1e8 / 42 * 1e-3)
    assert data["machine_info"]["gpu"] == {"name": "NVIDIA H200", "arch": "sm_90"}


def test_a_baseline_kernel_is_a_benchmark_of_its_own(paired):
    paired.times(40.2, sustained=50.2)
    result = paired.run("--benchmark-json=out.json")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines_random(["speed[[]n8[]] *40.2*", "speed[[]n8[]] baseline *40.0*"])
    today, baseline = json.loads((paired.path / "out.json").read_text())["benchmarks"]
    assert baseline["fullname"] == f"{today['fullname']} baseline"
    assert baseline["group"] == today["group"] == "scale"
    assert baseline["stats"]["mean"] == pytest.approx(40e-6)
    assert today["stats"]["mean"] == pytest.approx(40.2e-6)
    assert baseline["extra_info"]["sustained_us"] == pytest.approx(50.0)
    assert today["extra_info"]["sustained_us"] == pytest.approx(50.2)


def test_the_table_shows_gpu_time(project):
    project.run().stdout.fnmatch_lines(["*Name (time in us)*", "speed[[]n8[]]*40.0*"])


def test_benchmark_only_keeps_the_speed_gate(project):
    project.run("--benchmark-only").assert_outcomes(passed=1, skipped=1)


def test_disabled_benchmarks_still_gate(project):
    project.record(40.0)
    project.times(44.0)
    project.run("--benchmark-disable").assert_outcomes(passed=1, failed=1)


def test_compare(project):
    project.run("--benchmark-autosave").assert_outcomes(passed=2)
    project.times(44.0)
    result = project.run("--benchmark-compare")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["speed[[]n8[]] (0001_*40.0*", "speed[[]n8[]] (NOW)*44.0*"])


def test_histogram(project):
    # In a process of its own: pygal brings an importlib_metadata that does not survive pytester's clean-up.
    result = run_forked(project.pytester, "-m", "cutile_speed", "--benchmark-histogram=hist")
    result.assert_outcomes(passed=1)
    assert list(project.path.glob("hist*.svg"))


def test_the_closest_markers_arguments_are_kept(project):
    project.pytester.makepyfile(
        test_mine="""
        import pytest

        @pytest.mark.benchmark(group="mine")
        def test_mine(perf):
            perf(lambda: None, bytes=1e8)
        """
    )
    result = project.run("test_mine.py", "--benchmark-json=out.json", gates="")
    result.assert_outcomes(passed=1)
    (benchmark,) = json.loads((project.path / "out.json").read_text())["benchmarks"]
    assert benchmark["group"] == "mine"
    assert benchmark["stats"]["median"] == pytest.approx(40e-6)


def test_without_the_plugin_everything_else_works(project):
    project.record(40.0)
    project.times(44.0)
    result = project.run("-p", "no:benchmark")
    result.assert_outcomes(passed=1, failed=1)
