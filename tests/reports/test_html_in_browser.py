"""The page in a real browser (Debian's chromium): sorting, filtering, links, plots, no error, contrast."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_cutile.reports.cases import RunOutcome
from pytest_cutile.reports.html import render_html
from pytest_cutile.reports.report import report_of_run
from pytest_cutile.verdicts import Verdict
from tests.reports.test_html import HOSTILE, measured, story
from tests.reports.test_summary import result

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--hide-scrollbars"),
)
WATCH = """<script>
window.problems = [];
addEventListener("error", (event) => problems.push(event.message));
addEventListener("securitypolicyviolation", (event) => problems.push(event.violatedDirective));
for (const level of ["error", "warn"]) console[level] = (...words) => problems.push(words.join(" "));
</script>"""
ASK = """<script>addEventListener("load", () => {
  const answer = (() => { %s })();
  document.body.textContent = "ANSWER" + JSON.stringify({answer, problems}) + "END";
});</script>"""
HELPERS = """
  const rows = () => [...document.querySelectorAll("#table tbody tr")].filter((row) => !row.hidden);
  const column = (n) => rows().map((row) => row.cells[n].textContent);
  const sort = (name) => {
    const head = [...document.querySelectorAll("#table th")].find((one) => one.textContent === name);
    head.querySelector("button").click();
    return head.getAttribute("aria-sort");
  };
  const fill = (name, value) => {
    const field = document.querySelector(`[name=${name}]`);
    field.value = value;
    field.dispatchEvent(new Event("input", {bubbles: true}));
    return document.getElementById("count").textContent;
  };
"""


def a_page() -> str:
    slow = result(
        case="fp16-8x64",
        key="k[fp16-8x64]",
        kernel="k",
        gpu="NVIDIA H200",
        verdict=Verdict.REGRESSION,
        change=0.062,
        us_per_launch=100.0,
        measured=measured(baseline=(38.0, 39.0)),
    )
    others = [
        result(case=f"fp16-{n}x64", key=f"k[fp16-{n}x64]", kernel="k", change=change, us_per_launch=us,
               gpu="NVIDIA H200", measured=measured(flops=n * 1e6))
        for n, change, us in ((16, 5e-05, 9.0), (32, -0.01, 20.0), (64, 0.003, 30.0))
    ]  # fmt: skip
    hostile = result(case=HOSTILE, key=HOSTILE, change=None, us_per_launch=None, rate=None)
    results = [slow, *others, hostile]
    return render_html(report_of_run(RunOutcome(results=results, failed=[slow], stories=[story(slow)])))


def chromium(tmp_path: Path, page: str, *options: str, anchor: str = "") -> str:
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    address = (tmp_path / "page.html").as_uri() + anchor
    done = subprocess.run(
        [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path / 'profile'}", *options, address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def ask(tmp_path: Path, script: str, *options: str, page: str = "", anchor: str = "") -> Any:
    """Return what a script in the page returns; nothing may go wrong meanwhile."""
    text = (page or a_page()).replace("<style>", f"{WATCH}<style>", 1)
    text = text.replace("</body>", ASK % (HELPERS + script) + "</body>")
    dumped = chromium(tmp_path, text, "--virtual-time-budget=10000", "--dump-dom", *options, anchor=anchor)
    found = re.search("ANSWER(.*)END", dumped, re.DOTALL)
    assert found, dumped[:2000]
    answer = json.loads(html.unescape(found[1]))
    assert answer["problems"] == []
    return answer["answer"]


def test_sorting(tmp_path):
    script = (
        "return [sort('change'), column(8), sort('change'), column(8), sort('case'), column(1).slice(0, 4)]"
    )
    up, rising, down, falling, _, names = ask(tmp_path, script)
    assert (up, down) == ("ascending", "descending")
    assert rising == ["-1.0 %", "+0.0 %", "+0.3 %", "+6.2 %", ""]
    assert falling == ["+6.2 %", "+0.3 %", "+0.0 %", "-1.0 %", ""]  # what has no value stays last
    assert [name for name in names if name.startswith("fp16")] == [f"fp16-{n}x64" for n in (8, 16, 32, 64)]


def test_filtering(tmp_path):
    script = """
      return [fill('text', 'FP16-3'), column(1), fill('text', ''), fill('verdict', 'regression'), column(1)];
    """
    assert ask(tmp_path, script) == ["1 of 5 rows", ["fp16-32x64"], "5 rows", "1 of 5 rows", ["fp16-8x64"]]


def test_links_open_what_they_name(tmp_path):
    script = """
      const link = [...document.querySelectorAll("#table a")].find((one) => one.textContent === "fp16-32x64");
      link.click();
      location.hash = link.getAttribute("href");
      dispatchEvent(new HashChangeEvent("hashchange"));
      const target = document.querySelector(":target") ?? document.getElementById(location.hash.slice(1));
      const dead = [...document.querySelectorAll("a[href^='#']")]
        .filter((one) => !document.getElementById(decodeURIComponent(one.hash.slice(1))));
      return [target.tagName, target.open, dead.length];
    """
    assert ask(tmp_path, script) == ["DETAILS", True, 0]


@pytest.mark.parametrize("width", [360, 1280])
def test_plots_are_drawn_and_nothing_is_wider_than_the_page(tmp_path, width):
    script = """
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      const plots = [...document.querySelectorAll("svg")].map((one) => one.getBoundingClientRect());
      const least = (side) => Math.min(...plots.map((one) => one[side]));
      const over = document.documentElement.scrollWidth - document.documentElement.clientWidth;
      return [innerWidth, plots.length, least("width"), least("height"), over];
    """
    inner, count, wide, high, over = ask(tmp_path, script, f"--window-size={width},900")
    assert inner == width
    assert count >= 6  # a roofline, a ladder, samples of four cases
    assert wide > 250
    assert high > 140
    assert over <= 0


def test_texts_have_contrast_as_the_browser_computes_it(tmp_path):
    script = """
      const channels = (text) => text.match(/[\\d.]+/g).map(Number);
      const luminance = ([r, g, b]) => [r, g, b].map((one) => one / 255)
        .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4))
        .reduce((sum, one, n) => sum + one * [0.2126, 0.7152, 0.0722][n], 0);
      const ground = (node) => {
        for (; node; node = node.parentElement) {
          const own = channels(getComputedStyle(node).backgroundColor);
          if (own.length === 3 || own[3] > 0) return own;
        }
        return [255, 255, 255];
      };
      const low = [];
      for (const node of document.querySelectorAll("main *:not(svg *), header *")) {
        if (![...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim())) continue;
        const pair = [luminance(channels(getComputedStyle(node).color)), luminance(ground(node))].sort();
        const [dark, light] = pair[0] < pair[1] ? pair : [pair[1], pair[0]];
        if ((light + 0.05) / (dark + 0.05) < 4.5) low.push(node.outerHTML.slice(0, 100));
      }
      return low;
    """
    assert ask(tmp_path, script) == []


def test_2000_cases_load_in_two_seconds(tmp_path):
    samples = tuple(40.0 + 0.01 * number for number in range(160))
    results = [
        result(case=f"c{n}", key=f"k[c{n}]", gpu="NVIDIA H200", measured=measured(current=samples))
        for n in range(2000)
    ]
    page = render_html(report_of_run(RunOutcome(results=results)))
    script = "return [rows().length, performance.getEntriesByType('navigation')[0].domComplete]"
    shown, ready_ms = ask(tmp_path, script, page=page)
    assert shown == 2000
    assert ready_ms < 2000
