"""`--kernel-html`: a page about the run."""

import pytest


@pytest.mark.parametrize("args", [(), ("-n", "1", "-p", "no:benchmark")])
def test_a_page_about_a_regression(project, args):
    project.record(40.0)
    project.times(44.0)
    result = project.run("--kernel-html=page.html", *args)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = (project.path / "page.html").read_text()
    assert "1 of 1 case failed" in text
    assert "is 10.0% slower than its baseline" in text
    assert "mykernels/scale.py:" in text
    assert "Samples, burst" in text
    assert "History, burst, NVIDIA H200" in text


def test_a_page_without_jinja_is_a_usage_error(project, monkeypatch):
    monkeypatch.setattr("pytest_cutile.pytest_parts.report_files.find_spec", lambda _: None)
    result = project.run("--kernel-html=page.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--kernel-html needs the package jinja2: pip install *report*"])
