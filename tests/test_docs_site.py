"""The documentation site, as `scripts/docs` builds it: without a warning, and with what the pages promise."""

import html
import re
import subprocess
from pathlib import Path

import pytest

import pytest_cutile

ROOT = Path(__file__).resolve().parent.parent
NOT_INSTALLED = 75
"""Exit status of `scripts/docs` where its environment cannot be installed."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site() -> Path:
    done = subprocess.run(["scripts/docs"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == NOT_INSTALLED:
        pytest.skip(f"Sphinx cannot be installed: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "build" / "site"


def test_every_page_is_built_and_its_links_lead_somewhere(site):
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT).with_suffix(".html")
        assert (site / name).exists() or page.name == "README.md", name
    for page in [site / "index.html", *(site / "docs").rglob("*.html")]:
        text = page.read_text(encoding="utf-8")
        for href in re.findall(r'href="([^"#]+)(?:#[^"]*)?"', text):
            if "://" not in href:
                target = html.unescape(href).partition("?")[0]
                assert (page.parent / target).exists(), f"{page.relative_to(site)}: {href}"


def test_the_site_needs_no_network(site):
    loaded = r'<(?:script|img|iframe|source)[^>]* src="([^"]*//[^"]*)"'
    styles = r'<link[^>]* rel="stylesheet"[^>]*//[^>]*>'
    imported = r"(?:from|import)\s*\(?[\"']https?://[^\"']+"
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert re.findall(f"{loaded}|{styles}|{imported}", text) == [], page


@pytest.mark.parametrize("name", [name for name in pytest_cutile.__all__ if name != "__version__"])
def test_every_public_name_has_its_docstring(site, name):
    page = (site / "docs/reference/api.html").read_text(encoding="utf-8")
    assert f'id="pytest_cutile.{name}"' in page


@pytest.mark.parametrize("name", ["arch", "make_tensor", "check_kernel", "perf"])
def test_every_fixture_has_its_docstring(site, name):
    page = (site / "docs/reference/api.html").read_text(encoding="utf-8")
    assert f'id="pytest_cutile.plugin.{name}"' in page
