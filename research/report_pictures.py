"""Make the pictures of the documentation in Debian's chromium, at the widths of a desktop and of a phone.

    python -m research.report_pictures [--run RUN.json] [-o FOLDER] [--dark]

From stored files: the baselines of this project, and the run that `research.report_run` has made on a GPU.
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
PICTURES = ROOT / "docs" / "how-to" / "pictures"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--hide-scrollbars",
)
WIDTHS = {"desktop": 1240, "phone": 360}


@dataclass(frozen=True, kw_only=True)
class View:
    """A part of a page that is worth a picture."""

    name: str
    page: str
    selectors: Sequence[str]
    """Elements from the first one to the last one, of which each is opened."""


VIEWS = (
    View(name="overview", page="run", selectors=("header", "section:has(> #overview)", ".failure")),
    View(name="regression", page="run", selectors=("details.case[id^=d-bmm]:has(.chip.bad)",)),
    View(name="roofline", page="stored", selectors=(".kernel:has(h3[id^=kernel-fmha]) .plots",)),
    View(name="history", page="history", selectors=("details.case:has(path.step)",)),
    View(name="platforms", page="platforms", selectors=("header", "main section")),
)
FIND = """
  const [selectors] = arguments;
  document.styleSheets[0].insertRule(".case { content-visibility: visible !important }", 0);
  const found = selectors.map((one) => document.querySelector(one)).filter((one) => one);
  for (const one of found) {
    for (let node = one; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  }
  const boxes = found.map((one) => one.getBoundingClientRect());
  if (!boxes.length) return null;
  const top = Math.min(...boxes.map((one) => one.top)) + scrollY - 8;
  const bottom = Math.max(...boxes.map((one) => one.bottom)) + scrollY + 2;
  return {x: 0, y: Math.max(top, 0), width: innerWidth, height: bottom - top, scale: 1};
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
    """Return the view as a WebP; None where the page has nothing to show."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1.5, "mobile": False},
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    driver.get(page.as_uri())
    clip = driver.execute_script(FIND, view.selectors)
    if clip is None:
        return None
    encoding = {"format": "webp", "quality": 70}
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True, **encoding}
    )
    return base64.b64decode(shot["data"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, default=newest("run"), help="that --kernel-json wrote")
    parser.add_argument("--history", type=Path, default=newest("history"), help="speed baselines with a step")
    parser.add_argument(
        "-o", dest="folder", type=Path, default=PICTURES, help="default: docs/how-to/pictures"
    )
    parser.add_argument("--dark", action="store_true", help="in the colours of dark mode")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, browser() as driver:
        write_pages(Path(temporary), options.run, options.history)
        for view, (device, width) in itertools.product(VIEWS, WIDTHS.items()):
            page = Path(temporary) / f"{view.page}.html"
            shot = picture(driver, page, view, width=width, dark=options.dark) if page.exists() else None
            if shot is None:
                print(f"{view.name}: nothing to show")
            else:
                (options.folder / f"{view.name}-{device}.webp").write_bytes(shot)


if __name__ == "__main__":
    main()
