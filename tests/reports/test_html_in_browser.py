"""The page in a real browser (Debian's chromium): sorting, filtering, links, plots, no error, contrast."""

import math
import shutil
from typing import Any

import pytest

from pytest_cutile.reports.cases import RunOutcome
from pytest_cutile.reports.html import render_html
from pytest_cutile.reports.html.platforms import render_page
from pytest_cutile.reports.platforms import compare_platforms
from pytest_cutile.reports.report import report_of_run
from pytest_cutile.words.verdicts import Verdict
from research.published_baselines import published_files
from tests.reports.test_html import HOSTILE, errors, failed_test, measured, wrong_result
from tests.reports.test_terminal_summary import result

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium drives the browser")
Keys = webdriver.Keys
WebDriverWait = pytest.importorskip("selenium.webdriver.support.ui").WebDriverWait
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="apt-get install chromium chromium-driver"),
]
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--hide-scrollbars"),
)
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
    return render_html(
        report_of_run(RunOutcome(results=results, failed=[slow], failed_tests=[failed_test(slow)]))
    )


def a_page_of_nothing() -> str:
    return render_html(report_of_run(RunOutcome(results=[])))


def a_page_of_extremes() -> str:
    """Return a page with names of 300 characters in any script, wrong results, NaN, and single samples."""
    names = ["x" * 300, "語" * 300, "مرحبا" * 60, "😀" * 300, "x y " * 75]
    slow = [
        result(case=name, key=name, kernel=name, gpu=name, verdict=Verdict.REGRESSION, detail=name,
               rate=math.nan, measured=measured(current=(us,), baseline=(us,)))
        for name, us in zip(names, (40.0, math.nan, math.inf, 1e-3, 1e9), strict=True)
    ]  # fmt: skip
    wrong = [
        wrong_result(case=f"w{n}", key=f"w{n}", kernel="w", errors=errors(matrix=n, worst=n)) for n in names
    ]
    failed_tests = [
        failed_test(one, headline=one.case, place=one.case, command=one.case) for one in (*slow, *wrong)
    ]
    run = RunOutcome(
        results=[*slow, *wrong], failed=[*slow, *wrong], failed_tests=failed_tests, remarks=names
    )
    return render_html(report_of_run(run))


def a_page_of_platforms() -> str:
    return render_page(compare_platforms(published_files(), ["gb10.json", "b300.json"]))


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in QUIET:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def ask(browser, tmp_path):
    """Return a function that opens a page, and returns what a script in it returns."""

    def ask(script: str, *, width: int = 1280, page: str = "", dark: bool = False) -> Any:
        (tmp_path / "page.html").write_text(page or a_page(), encoding="utf-8")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        browser.get("about:blank")
        browser.get((tmp_path / "page.html").as_uri())
        WebDriverWait(browser, 60).until(
            lambda browser: browser.execute_script("return document.readyState") == "complete"
        )
        return browser.execute_script(HELPERS + script)

    yield ask
    assert browser.get_log("browser") == []  # neither errors nor refused requests


def test_sorting(ask):
    script = "return [sort('change'), column(8), sort('change'), column(8), sort('case'), column(1)]"
    up, rising, down, falling, _, names = ask(script)
    assert (up, down) == ("ascending", "descending")
    assert rising == ["-1.0 %", "+0.0 %", "+0.3 %", "+6.2 %", ""]
    assert falling == ["+6.2 %", "+0.3 %", "+0.0 %", "-1.0 %", ""]  # what has no value stays last
    assert [name for name in names if name.startswith("fp16")] == [f"fp16-{n}x64" for n in (8, 16, 32, 64)]


def test_filtering(ask):
    script = """
      return [fill('text', 'FP16-3'), column(1), fill('text', ''), fill('verdict', 'regression'), column(1)];
    """
    assert ask(script) == ["1 of 5 rows", ["fp16-32x64"], "5 rows", "1 of 5 rows", ["fp16-8x64"]]


def test_links_open_what_they_name(ask, browser):
    ask("[...document.querySelectorAll('#table a')].find((one) => one.textContent === 'fp16-32x64').click();")
    script = """
      const dead = [...document.querySelectorAll("a[href^='#']")]
        .filter((one) => !document.getElementById(decodeURIComponent(one.getAttribute("href").slice(1))));
      const target = document.querySelector(":target");
      return [target.tagName, target.open, dead.length];
    """
    assert browser.execute_script(script) == ["DETAILS", True, 0]


def test_a_link_to_a_row_that_a_filter_hides_shows_it(ask):
    script = """
      const every = [...document.querySelectorAll("#table tbody tr")];
      const row = every.find((one) => one.textContent.includes("fp16-8x64"));
      const hidden = [fill("text", "fp16-32"), row.hidden][1];
      location.hash = row.id;
      dispatchEvent(new Event("hashchange"));
      return [hidden, row.hidden];
    """
    assert ask(script) == [True, False]


def test_an_address_that_is_no_name_does_no_harm(ask):
    script = """
      location.hash = "#100%";
      dispatchEvent(new Event("hashchange"));
      return fill("text", "fp16-3");
    """
    assert ask(script) == "1 of 5 rows"


def press(browser, key: str) -> Any:
    """Press a key, and return what has the focus then: its tag and its text."""
    webdriver.ActionChains(browser).send_keys(key).perform()
    return browser.execute_script(
        "const one = document.activeElement; return [one.tagName, one.textContent.trim().slice(0, 30)]"
    )


def walk_to(browser, wanted: list[str], key: str = Keys.TAB) -> None:
    """Press a key until the focus is on an element."""
    seen = [press(browser, key)]
    while seen[-1] != wanted:
        assert len(seen) < 60, seen
        seen.append(press(browser, key))


def test_the_keyboard_skips_to_the_cases_sorts_them_and_opens_one(ask, browser):
    ask("")
    assert press(browser, Keys.TAB) == ["A", "Skip to the cases"]
    press(browser, Keys.ENTER)
    walk_to(browser, ["BUTTON", "time"])
    press(browser, Keys.ENTER)
    rising = ["9 us", "20 us", "30 us", "100 us", ""]
    assert browser.execute_script(f"{HELPERS} return column(5)") == rising
    walk_to(browser, ["A", "fp16-32x64"])
    press(browser, Keys.ENTER)
    opened = "return document.querySelector(':target')?.open"  # by an event that comes after the key
    WebDriverWait(browser, 60).until(lambda _: browser.execute_script(opened))


@pytest.mark.parametrize("made", [a_page, a_page_of_extremes, a_page_of_platforms])
def test_what_scrolls_can_be_reached_by_keyboard_and_plots_have_words(ask, made):
    script = """
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      const scrolls = (one) =>
        one.scrollWidth > one.clientWidth && getComputedStyle(one).overflowX === "auto";
      const dumb = [...document.querySelectorAll("body *")].filter((one) => scrolls(one) && one.tabIndex < 0);
      const silent = [...document.querySelectorAll("svg")].filter((one) => !one.getAttribute("aria-label"));
      return [...dumb, ...silent].map((one) => one.outerHTML.slice(0, 80));
    """
    assert ask(script, page=made(), width=360) == []


# Of a run: a roofline, a ladder and samples of four cases; of platforms: ratios and a ladder; of extremes:
# samples of three cases, and maps of five, with their details and one of them with its failure.
@pytest.mark.parametrize(
    ("made", "plots"),
    [(a_page, 6), (a_page_of_platforms, 2), (a_page_of_extremes, 9), (a_page_of_nothing, 0)],
)
@pytest.mark.parametrize("width", [360, 1280])
def test_plots_are_drawn_and_nothing_is_wider_than_the_page(ask, width, made, plots):
    script = """
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      const plots = [...document.querySelectorAll("svg")].map((one) => one.getBoundingClientRect());
      const least = (side) => plots.length && Math.min(...plots.map((one) => one[side]));
      const over = document.documentElement.scrollWidth - document.documentElement.clientWidth;
      return [innerWidth, plots.length, least("width"), least("height"), over];
    """
    inner, count, wide, high, over = ask(script, width=width, page=made())
    assert inner == width
    assert count >= plots
    assert over <= 0
    assert not plots or wide > 250
    assert not plots or high > 140


@pytest.mark.parametrize("made", [a_page, a_page_of_platforms])
def test_texts_of_plots_can_be_read_on_a_phone(ask, made):
    script = """
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      const texts = [...document.querySelectorAll("svg text")];
      const sizes = texts.map((one) => one.getScreenCTM().a || Math.abs(one.getScreenCTM().b))
        .map((scale, n) => scale * parseFloat(getComputedStyle(texts[n]).fontSize));
      const outside = texts.filter((one) => {
        const [own, plot] = [one, one.closest("svg")].map((node) => node.getBoundingClientRect());
        return own.left < plot.left - 1 || own.right > plot.right + 1;
      });
      return [Math.min(...sizes), outside.map((one) => one.textContent)];
    """
    smallest, outside = ask(script, page=made(), width=360)
    assert smallest >= 11
    assert outside == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("made", [a_page, a_page_of_platforms, a_page_of_extremes])
def test_texts_have_contrast_as_the_browser_computes_it(ask, made, dark):
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
      document.querySelectorAll("details").forEach((one) => { one.open = true; });
      // A title is a tooltip, which the browser draws in colours of its own.
      for (const node of document.querySelectorAll("main *:not(title), header *")) {
        if (![...node.childNodes].some((one) => one.nodeType === 3 && one.data.trim())) continue;
        const style = getComputedStyle(node);
        const shown = channels(node.closest("svg") ? style.fill : style.color);
        const pair = [luminance(shown), luminance(ground(node))].sort();
        const [dark, light] = pair[0] < pair[1] ? pair : [pair[1], pair[0]];
        if ((light + 0.05) / (dark + 0.05) < 4.5) low.push(node.outerHTML.slice(0, 100));
      }
      return low.length || matchMedia("(prefers-color-scheme: dark)").matches;
    """
    assert ask(script, page=made(), dark=dark) is dark


def cpu_seconds(browser) -> float:
    """Return what the page's thread has computed so far."""
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def test_2000_cases_load_in_two_seconds(ask, browser):
    samples = tuple(40.0 + 0.01 * number for number in range(160))
    results = [
        result(case=f"c{n}", key=f"k[c{n}]", gpu="NVIDIA H200", measured=measured(current=samples))
        for n in range(2000)
    ]
    page = render_html(report_of_run(RunOutcome(results=results)))
    browser.execute_cdp_cmd(
        "Performance.enable", {"timeDomain": "threadTicks"}
    )  # other processes do not count
    before = cpu_seconds(browser)
    assert ask("return rows().length", page=page) == 2000
    assert cpu_seconds(browser) - before < 2
