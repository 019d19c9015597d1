"""The page: what it shows, what it escapes, and how large it gets."""

import math
import re
import time
from html.parser import HTMLParser

import pytest

from pytest_cutile.baselines.entries import Run
from pytest_cutile.cli import main
from pytest_cutile.reports.cases import RunOutcome, Story
from pytest_cutile.reports.history import HistoryPoint
from pytest_cutile.reports.html import PAGE_BYTES, render_html
from pytest_cutile.reports.html.plots import (
    Dot,
    PlottedLine,
    histogram,
    history_plot,
    lines_plot,
    ratio_plot,
    roofline,
)
from pytest_cutile.reports.html.templates import text_of
from pytest_cutile.reports.report import report_of_baselines, report_of_run
from pytest_cutile.results import Measured, SampleBlock
from pytest_cutile.verdicts import Reason, Verdict
from tests.baselines.examples import baselines, entry, record
from tests.reports.test_summary import NOT_MEASURED, result

HOSTILE = "<script>alert('x')</script>\"'&\x1b[2J\u202e"
VOID = {"meta", "link", "input", "img", "br", "hr"}


class Page(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attributes(self, name: str) -> list[str]:
        return [value for _, attrs in self.tags if (value := attrs.get(name)) is not None]


def measured(current=(40.0, 41.0, 42.0), baseline=(), **facts) -> Measured:
    block = SampleBlock(regime="burst", current_us=current, baseline_us=baseline)
    return Measured(blocks=(block,), **{"flops": 1e9, "bytes": 1e8, "dtype": "float16", **facts})


def page_of(*results, **facts) -> Page:
    return Page(render_html(report_of_run(RunOutcome(results=results, **facts))))


def story(of, **changes) -> Story:
    texts = {"nodeid": "k.py::speed[c]", "headline": "it is slower", "place": "k.py:7", "text": "all of it"}
    return Story(**{**texts, "command": "pytest 'k.py::speed[c]'", "results": (of,), **changes})


def test_no_case():
    assert "No case was run." in page_of().text


def test_one_case_has_a_row_that_leads_to_its_details():
    page = page_of(result(measured=measured(), gpu="NVIDIA H200"))
    ids = page.attributes("id")
    assert len(ids) == len({*ids})
    for href in page.attributes("href"):
        assert not href.startswith("#") or href[1:] in ids
    for text in ("softmax", "bf16-4096x8192", "38.8 us", "3459 GB/s", "72 %", "+0.3 %", "pass"):
        assert text in page.text
    labels = page.attributes("aria-label")
    assert any(label.startswith("3 samples of 40 us to 42 us") for label in labels)


def test_failures_come_first_with_story_place_and_command():
    slow = result(verdict=Verdict.REGRESSION, reason=Reason.SLOWER, measured=measured(baseline=(38.0, 39.0)))
    page = page_of(result(case="other", key="o"), slow, failed=[slow], stories=[story(slow)])
    order = [page.text.index(text) for text in ("1 of 2 cases failed", "it is slower", "k.py:7", "pytest 'k")]
    assert order == sorted(order)
    assert order[-1] < page.text.index("other")
    assert any("2 of the baseline kernel" in label for label in page.attributes("aria-label"))


def test_a_wrong_result_shows_where_its_errors_are():
    wrong = result(
        "correct", verdict=Verdict.FAIL, reason=Reason.WRONG_VALUES, picture="<svg onload='alert(1)'/>"
    )
    page = page_of(wrong, failed=[wrong], stories=[story(wrong)])
    assert any(src.startswith("data:image/svg+xml;base64,") for src in page.attributes("src"))
    assert page.attributes("onload") == []


def test_details_say_what_the_gpu_did_and_what_the_compiler_changed():
    busy = measured(clock_mhz=1980.0, sustained_watts=694.2, problems=("another process used the GPU",))
    changes = ("worse: spills: 0 -> 64", "different: grid: (4, 4) -> (8, 4)")
    text = page_of(result(measured=busy, gpu="NVIDIA H200"), result("static", changes=changes)).text
    assert "NVIDIA H200, measured: 38.8 us; 3459 GB/s; 72 % of the limit; 1980 MHz; 694 W sustained" in text
    assert "another process used the GPU" in text
    assert "sm_90: worse: spills: 0 -> 64" in text


def test_what_was_not_measured_is_said():
    assert "1 speed no GPU: no NVIDIA driver" in page_of(result(**NOT_MEASURED)).text


def test_hostile_texts_are_nothing_but_text():
    hostile = result(
        case=HOSTILE, key=HOSTILE, kernel=HOSTILE, arch=HOSTILE, gpu=HOSTILE, detail=HOSTILE, unit=HOSTILE,
        verdict=Verdict.REGRESSION, reason=Reason.SLOWER, measured=measured(dtype=HOSTILE),
    )  # fmt: skip
    told = story(hostile, headline=HOSTILE, place=HOSTILE, text=HOSTILE, command=HOSTILE)
    run = RunOutcome(
        results=[hostile],
        failed=[hostile],
        stories=[told],
        remarks=[HOSTILE],
        environment={HOSTILE: HOSTILE, "commit": HOSTILE},
    )
    text = render_html(report_of_run(run))
    assert "\x1b" not in text
    assert "\u202e" not in text
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert page.text.count("<script>alert('x')</script>") > 10


@pytest.mark.parametrize(
    "name", ["x" * 300, "語" * 300, "مرحبا" * 60, "😀" * 300], ids=["x", "cjk", "arabic", "emoji"]
)
def test_names_of_300_characters_in_any_script(name):
    slow = result(case=name, key=name, kernel=name, verdict=Verdict.REGRESSION, measured=measured())
    page = page_of(slow, failed=[slow], stories=[story(slow, headline=name)])
    assert page.text.count(name) >= 3


def test_numbers_that_are_no_sizes():
    names = [f"{digit * 300}x64" for digit in "789"] + ["7" * 5000]
    page = page_of(*(result(case=name, key=name, gpu="NVIDIA H200", measured=measured()) for name in names))
    assert "throughput" not in page.text


def test_kernels_whose_names_no_address_can_hold():
    page = page_of(*(result(case="c", key=kernel, kernel=kernel) for kernel in ("語", "言", "<", ">")))
    ids = page.attributes("id")
    assert len(ids) == len({*ids})


@pytest.mark.parametrize("us", [math.nan, math.inf, 40.0], ids=str)
def test_samples_of_one_value_and_of_none(us):
    page = page_of(result(us_per_launch=us, rate=us, change=us, measured=measured(current=(us,))))
    assert not {"nan", "inf"} & {*page.text.lower().split()}
    assert any("1 sample of 40 us" in label for label in page.attributes("aria-label")) == math.isfinite(us)


def test_the_page_works_with_no_network():
    text = render_html(report_of_baselines([baselines({"softmax[c]": entry(record(1, 40.0))})], [], {}))
    page = Page(text)
    addresses = page.attributes("src") + [href for href in page.attributes("href") if href != "data:,"]
    assert [one for one in addresses if not one.startswith(("#", "data:image/"))] == []
    assert "@import" not in text
    assert "url(" not in text
    assert "default-src 'none'" in page.attributes("content")[1]


def test_a_history_with_a_step():
    page = Page(render_html(report_of_baselines(
        [baselines({"softmax[c]": entry(record(1, 40.0), record(2, 44.0))})], [], {}
    )))  # fmt: skip
    assert "NVIDIA H200: a step of +10.0 % between 0123456789ab and 0123456789ab" in page.text
    assert any(
        "2 recorded sessions on 1 GPU, 40 us to 44 us, 1 step" in one for one in page.attributes("aria-label")
    )


def test_times_of_two_regimes_are_not_one_history():
    """A launch that became too long for bursts has no step: power limits the other times."""
    sustained = record(2, runs=(Run(sustained_us=8000.0),))
    stored = baselines({"softmax[c]": entry(record(1, 7000.0), sustained)})
    labels = Page(render_html(report_of_baselines([stored], [], {}))).attributes("aria-label")
    assert "1 recorded session on 1 GPU, 7 ms to 7 ms, 0 steps" in labels
    assert "1 recorded session on 1 GPU, 8 ms to 8 ms, 0 steps" in labels


def test_a_ladder_of_sizes_and_a_roofline():
    results = [
        result(
            case=f"fp16-{n}x64", key=f"s[fp16-{n}x64]", gpu="NVIDIA H200", measured=measured(flops=n * 1e6)
        )
        for n in (512, 1024, 2048)
    ]
    page = page_of(*results)
    assert "fp16-Nx64: throughput over N" in page.text
    assert "Roofline, NVIDIA H200" in page.text
    assert any("limits 989.4 TFLOPS of fp16, 4800 GB/s" in one for one in page.attributes("aria-label"))


def test_gpus_stand_side_by_side():
    stored = [
        baselines({"softmax[c]": entry(record(1, 40.0))}),
        baselines({"softmax[c]": entry(record(1, 20.0))}, arch="sm_121", gpu="NVIDIA GB10"),
    ]
    page = Page(render_html(report_of_baselines(stored, [], {})))
    assert "GPUs side by side" in page.text


def test_2000_cases_are_made_in_two_seconds_and_stay_under_2_mb():
    samples = tuple(40.0 + 0.01 * number for number in range(160))
    results = [
        result(
            case=f"fp16-{n}x{number}", key=f"k{number % 20}[fp16-{n}x{number}]", kernel=f"k{number % 20}",
            gpu="NVIDIA H200", measured=measured(current=samples, baseline=samples),
        )
        for number, n in ((number, 64 * (number % 16 + 1)) for number in range(2000))
    ]  # fmt: skip
    slow = result(case="slow", key="z[slow]", kernel="z", verdict=Verdict.REGRESSION, measured=measured())
    report = report_of_run(RunOutcome(results=[*results, slow], failed=[slow]))
    started = time.process_time()
    text = render_html(report)
    assert time.process_time() - started < 4  # two on a quiet machine
    assert len(text.encode()) <= PAGE_BYTES + 50_000
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("tr") > 2001
    assert "in the table without details: the page would be too large" in page.text
    assert any(one.startswith("d-z-slow") for one in page.attributes("id"))  # what failed has its details
    ids = {*page.attributes("id")}
    assert [one for one in page.attributes("href") if one.startswith("#") and one[1:] not in ids] == []


def colours(*, dark: bool) -> dict[str, str]:
    light, night = text_of("page.css").split("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--(\w+): (#\w{6})", light))
    return found | (dict(re.findall(r"--(\w+): (#\w{6})", night)) if dark else {})


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours (WCAG 2.2, 1.4.3)."""

    def luminance(colour: str) -> float:
        parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_and_marks_have_contrast(dark):
    of = colours(dark=dark)
    names = ["fg", "muted", "link", "good", "bad", "warn", *(f"c{number}" for number in range(6))]
    low = {name for name in names for ground in ("bg", "panel") if contrast(of[name], of[ground]) < 4.5}
    assert low == set()


@pytest.mark.parametrize(
    "plot",
    [
        histogram([]), histogram([math.nan]), history_plot([], "burst"),
        history_plot([HistoryPoint(at="2026-01-01T00:00:00+00:00", commit="", gpu_uuid="")], "burst"),
        lines_plot([], x_title="", y_title="", label=""), roofline({}, gb_per_s=1, peaks={}, label=""),
        ratio_plot({}, {}, x_title="", label=""),
    ],
)  # fmt: skip
def test_nothing_to_draw_is_no_plot(plot):
    assert plot == ""


def test_a_roofline_stays_in_its_frame():
    """Where every case is far right of where the roof bends, and limits differ by much."""
    peaks = {"fp8": 2000.0, "tf32": 100.0}
    svg = roofline({"fp8": [Dot(x=1e6, y=900.0, title="")]}, gb_per_s=5000, peaks=peaks, label="")
    for path in re.findall(r'class="roof" d="M([^"]+)"', svg):
        for x, y in re.findall(r"([-\d.]+) ([-\d.]+)", path):
            assert 52 <= float(x) <= 348
            assert 28 <= float(y) <= 176


def test_equal_values_are_drawn():
    assert histogram([40.0] * 5).count("<svg") == 1
    point = HistoryPoint(at="2026-01-01T00:00:00+00:00", commit="abc", gpu_uuid="GPU-1", burst_us=40.0)
    assert "nan" not in history_plot([point], "burst")
    dots = [Dot(x=8, y=1.0, title="")]
    assert "nan" not in lines_plot([PlottedLine(name="", dots=dots)], x_title="", y_title="", label="")


# -- the command --------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "baselines").mkdir()
    return tmp_path


def test_the_command_writes_a_page_or_json(stored, capsys):
    assert main(["report", "-o", "site"]) == 0
    assert main(["report", "baselines", "-o", "page.html"]) == 0
    assert main(["report", "-o", "report.json"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "site/index.html: 0 cases"
    assert (stored / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert '"of": "baselines"' in (stored / "report.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nosuch", "-o", "site"], "nosuch: there is no such file or folder"),
        (["-o", "/dev/full/page.html"], "/dev/full/page.html: nothing was written: File exists"),
        (["-o", "n" * 300], "nothing was written: File name too long"),
    ],
)
def test_what_cannot_be_done_is_one_message(stored, capsys, arguments, message):
    assert main(["report", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert [path.name for path in stored.iterdir()] == ["baselines"]
