"""Make the pictures of the documentation, and evidence that pages are good to look at, in Debian's chromium.

    python -m research.report_pictures [--run RUN.json] [--evidence FOLDER]

From stored files: the baselines of this project, and the run that `research.report_run` has made on a GPU.
The pictures of `docs/how-to/` are written there. With --evidence, FOLDER gets each view at the width of a
desktop and of a phone, in light and dark.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver

from pytest_cutile.cli import main as pytest_cutile

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "research" / "data"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--hide-scrollbars",
)
DESKTOP, PHONE = 1240, 360
HIGHEST = 1600
"""Pixels of a picture."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A part of a page that is worth a picture."""

    name: str
    page: str
    selectors: Sequence[str]
    """Elements from the first one to the last one, of which each is opened."""
    docs: str = ""
    """File of `docs/how-to/` that shows it, at the width of a desktop and in light; empty for none."""


VIEWS = (
    View(
        name="overview",
        page="run",
        selectors=("header", "section:has(> #overview)", ".failure"),
        docs="report-page.png",
    ),
    View(
        name="regression",
        page="run",
        selectors=("details.case[id^=d-bmm]:has(.chip.bad)",),
        docs="report-case.png",
    ),
    View(name="wrong-result", page="run", selectors=(".failure:has(.heat)",)),
    View(
        name="roofline",
        page="stored",
        selectors=(".kernel:has(h3[id^=kernel-fmha]) .plots",),
        docs="report-plots.png",
    ),
    View(name="history", page="history", selectors=("details.case:has(path.step)",)),
    View(name="platforms", page="platforms", selectors=("header", "main section")),
    View(name="tables", page="platforms", selectors=("main section:has(> h2:not([id]))",)),
)
FIND = """
  const [selectors, highest] = arguments;
  document.styleSheets[0].insertRule(".case { content-visibility: visible !important }", 0);
  const found = selectors.map((one) => document.querySelector(one)).filter((one) => one);
  for (const one of found) {
    for (let node = one; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  }
  const boxes = found.map((one) => one.getBoundingClientRect());
  if (!boxes.length) return null;
  const top = Math.min(...boxes.map((one) => one.top)) + scrollY - 8;
  const bottom = Math.max(...boxes.map((one) => one.bottom)) + scrollY + 8;
  return {x: 0, y: Math.max(top, 0), width: innerWidth, height: Math.min(bottom - top, highest), scale: 1};
"""


def newest(what: str) -> Path:
    """Return the newest file of `research/data/` that `research.report_run` has made."""
    return max(DATA.glob(f"*-report-{what}.json"), default=DATA / f"report-{what}.json")


def write_pages(folder: Path, run: Path, history: Path) -> None:
    """Write the pages by the commands that users have."""
    stored = ROOT / "baselines"
    platforms = [stored / f"{name}.json" for name in ("sm_121-nvidia-gb10", "sm_103-nvidia-b300-sxm6-ac")]
    commands = {
        "stored": ["report", stored],
        "platforms": ["compare", *platforms],
        "run": ["report", "--run", run],
        "history": ["report", history],
    }
    for name, command in commands.items():
        status = pytest_cutile([*map(str, command), "-o", f"{folder / name}.html"])
        print(f"{name}: {'status ' + str(status) if status else 'written'}")


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(shutil.which("chromedriver"))
        )
        try:
            yield driver
        finally:
            driver.quit()


def picture(driver: webdriver.Chrome, page: Path, view: View, *, width: int, dark: bool) -> bytes | None:
    """Return the view as a PNG; None where the page has nothing to show."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 2, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.as_uri())
    clip = driver.execute_script(FIND, view.selectors, HIGHEST)
    if clip is None:
        return None
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return base64.b64decode(shot["data"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, default=newest("run"), help="that --kernel-json wrote")
    parser.add_argument("--history", type=Path, default=newest("history"), help="speed baselines with a step")
    parser.add_argument(
        "--evidence", type=Path, metavar="FOLDER", help="write every view there, and none to docs/"
    )
    options = parser.parse_args()
    looks = [(DESKTOP, False)]
    if options.evidence:
        options.evidence.mkdir(parents=True, exist_ok=True)
        looks = [(width, dark) for width in (DESKTOP, PHONE) for dark in (False, True)]
    with tempfile.TemporaryDirectory() as temporary, browser() as driver:
        write_pages(Path(temporary), options.run, options.history)
        for view, (width, dark) in itertools.product(VIEWS, looks):
            page = Path(temporary) / f"{view.page}.html"
            png = picture(driver, page, view, width=width, dark=dark) if page.exists() else None
            if png is None:
                print(f"{view.name}: nothing to show")
            elif options.evidence:
                (options.evidence / f"{view.name}-{width}{'-dark' * dark}.png").write_bytes(png)
            elif view.docs:
                (ROOT / "docs" / "how-to" / view.docs).write_bytes(png)


if __name__ == "__main__":
    main()
