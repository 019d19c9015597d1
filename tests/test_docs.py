"""The documentation is true: links lead somewhere, lists are complete, pages are short."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_cutile
from pytest_cutile.words.spec import Case, KernelSpec, Work
from pytest_cutile.words.verdicts import FAILED, Reason, Verdict
from tests.pages import PAGES, ROOT, name_of

REPORTS = [ROOT / "research" / "README.md", *sorted((ROOT / "research" / "reports").glob("*.md"))]
MOST_WORDS = 1500


LISTS = ("docs/reference/", "docs/architecture.md")
"""Pages that are looked things up in, and grow by a row with each gate, option or reason."""


@pytest.mark.parametrize("page", [page for page in PAGES if not name_of(page).startswith(LISTS)], ids=name_of)
def test_a_page_is_short(page):
    assert len(page.read_text(encoding="utf-8").split()) <= MOST_WORDS


def links_of(page: Path) -> Iterator[tuple[str, str]]:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *REPORTS], ids=name_of)
def test_links_lead_somewhere(page):
    for path, anchor in links_of(page):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in anchors_of(target), f"{path}#{anchor}"


def test_every_option_and_ini_key_is_listed(pytestconfig):
    text = (ROOT / "docs" / "reference" / "options.md").read_text(encoding="utf-8")
    listed = {*re.findall(r"`(--[a-z-]+)", text)}
    groups = [group for group in pytestconfig._parser._groups if group.name.startswith("cutile")]
    options = {name for group in groups for option in group.options for name in option.names()} | {"--arch"}
    assert options <= listed
    theirs = {"--benchmark-", "--help", "--junitxml", "--lf", "--into", "--markdown"}
    assert listed <= options | theirs
    keys = {key for key in pytestconfig._parser._inidict if key.startswith("cutile_")}
    assert keys == {*re.findall(r"^\| `(cutile_\w+)` \|", text, re.MULTILINE)}


def rows_of(section: str) -> list[list[str]]:
    """Return the cells of the first table in a section of the page of verdicts, without its head."""
    text = (ROOT / "docs" / "reference" / "verdicts.md").read_text(encoding="utf-8")
    lines = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return rows[2:]


GATES = {gate for reason in Reason for gate in reason.gates}


@pytest.mark.parametrize("section", ["any gate", *sorted(GATES)])
def test_every_reason_of_a_gate_is_listed_with_its_verdict(section):
    listed = {
        code: verdict
        for codes, verdict, *_ in rows_of(section.capitalize())
        for code in re.findall(r"`(\S+)`", codes)
    }
    any_gate = {reason: reason.verdict for reason in Reason if {*reason.gates} == GATES}
    of_gate = {reason: reason.verdict for reason in Reason if section in reason.gates}
    assert listed == (any_gate if section == "any gate" else dict(of_gate.items() - any_gate.items()))


def test_every_verdict_is_listed_with_what_it_does_to_its_test():
    listed = {
        code: outcome for codes, outcome in rows_of("Verdicts") for code in re.findall(r"`(\S+)`", codes)
    }
    outcomes = {Verdict.NOT_MEASURED: "skipped", **dict.fromkeys(FAILED, "fails")}
    assert listed == {verdict: outcomes.get(verdict, "passes") for verdict in Verdict}


@pytest.mark.parametrize("name", pytest_cutile.__all__)
def test_every_public_name_is_listed(name):
    text = (ROOT / "docs" / "reference" / "fixtures.md").read_text(encoding="utf-8")
    assert f"`{name}`" in text.partition("## Names of `pytest_cutile`")[2]


def test_every_option_of_a_check_is_listed():
    text = (ROOT / "docs" / "reference" / "fixtures.md").read_text(encoding="utf-8")
    section = text.partition("\n## check_kernel\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert listed == {*pytest_cutile.CheckOptions.__dataclass_fields__}


@pytest.mark.parametrize("declaration", [KernelSpec, Case, Work])
def test_every_field_of_a_declaration_is_listed(declaration):
    text = (ROOT / "docs" / "reference" / "kernel-spec.md").read_text(encoding="utf-8")
    section = text.partition(f"\n## {declaration.__name__}\n")[2].partition("\n## ")[0]
    declared = {field.name for field in dataclasses.fields(declaration) if field.init}
    assert {*re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)} == declared


def images_of(page: Path) -> set[Path]:
    """Return the files of the pictures that a page shows."""
    names = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    return {(page.parent / name).resolve() for name in names}


@pytest.mark.parametrize(
    "study", sorted(file.parent for file in (ROOT / "studies").glob("*/main.py")), ids=name_of
)
def test_a_study_shows_its_plots(study):
    results = [*(ROOT / "studies" / "results").glob(f"*/{study.name}")]
    assert results
    assert images_of(study / "README.md") & {plot for folder in results for plot in folder.glob("*.svg")}
    for folder in results:
        shown = {image for page in folder.glob("*.md") for image in images_of(page)}
        assert shown == {*folder.glob("*.svg")}
