"""The document model's renderers: what fits, what is cut or split, and what cannot break out."""

import pytest

from pytest_cutile.reports.markdown import render_markdown
from pytest_cutile.words.document import (
    Code,
    Column,
    Document,
    DocumentBlock,
    Facts,
    Overflow,
    Paragraph,
    Row,
    Section,
    Table,
    Tone,
    printable,
)
from pytest_cutile.words.quantities import format_time
from pytest_cutile.words.text import render_lines, render_text


def lines(*blocks) -> list[str]:
    return [line.text for line in render_lines(blocks, width=40)]


def test_times_keep_their_unit():
    assert format_time(38.806) == "38.81 us"
    assert format_time(1203.4) == "1.203 ms"


def test_columns_are_aligned_and_empty_ones_left_out():
    columns = [Column("name"), Column("empty"), Column("time", right=True)]
    assert lines(Table(columns, [Row(("a", "", "1 us")), Row(("long", "", "10 us"))])) == [
        "name   time",
        "----  -----",
        "a      1 us",
        "long  10 us",
    ]


def test_names_lose_their_middle_before_a_table_is_too_wide():
    columns = [Column("kernel", shrinks=True), Column("case", shrinks=True), Column("verdict")]
    *_, row = lines(Table(columns, [Row(("k" * 30 + "1", "c" * 30 + "2", "pass"))]))
    assert len(row) <= 40
    assert "..kkkkk1  cc" in row
    assert row.endswith("2  pass")


def test_a_wide_table_without_names_is_split_and_repeats_its_first_column():
    columns = [Column("row"), *(Column(f"column {number}") for number in range(6))]
    text = lines(Table(columns, [Row(("first", *"abcdef"))]))
    assert max(map(len, text)) <= 40
    assert [line.split() for line in text if line.startswith("first")] == [
        ["first", *"abc"],
        ["first", *"def"],
    ]


def test_long_lines_are_wrapped_clipped_or_kept():
    text = "word " * 10
    assert lines(Paragraph(text)) == ["word word word word word word word word", "  word word"]
    assert lines(Paragraph(text, overflow=Overflow.CLIP)) == ["word word word word word word word w ..."]
    assert lines(Paragraph(f"  {text}", overflow=Overflow.KEEP)) == [f"  {text.rstrip()}"]


def test_rows_and_paragraphs_keep_their_tone():
    blocks: list[DocumentBlock] = [
        Paragraph("fine", tone=Tone.GOOD),
        Table([Column("a")], [Row(("b",), Tone.BAD)]),
    ]
    assert [line.tone for line in render_lines(blocks) if line.text in ("fine", "b")] == [Tone.GOOD, Tone.BAD]


def test_control_characters_reach_neither_terminal_nor_page():
    evil = "\x1b[31mred\nnext\x07"
    blocks: list[DocumentBlock] = [
        Paragraph(evil),
        Facts([(evil, [evil])]),
        Code(evil),
        Table([Column(evil, verbatim=True)], [Row((evil,))]),
        Section(evil, [Paragraph(evil)]),
    ]
    document = Document(evil, blocks)
    for text in (render_text(document), render_markdown(document)):
        assert "[31mred" in text
        assert all(char.isprintable() or char == "\n" for char in text)
    # Of all these only a command has several lines.
    following = [line for line in render_text(document).splitlines() if line.strip() == r"next\x07"]
    assert following == [r"  next\x07"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("\u202eb\udc80", r"\u202eb\udc80"),
        ("::set-output name=x::y", r"\::set-output name=x::y"),
        ("a\n::error::b", r"a \::error::b"),
        ("  ::stop-commands::x", r"  \::stop-commands::x"),
        ("##[error]x ##vso[task.x] ###[group]", r"#\#[error]x #\#vso[task.x] ##\#[group]"),
        ("tests/test_a.py::test_b ## c", "tests/test_a.py::test_b ## c"),
        ("a\tb\xa0c", "a b c"),
    ],
)
def test_what_a_terminal_or_a_log_would_obey_is_shown(text, shown):
    assert printable(text) == printable(shown) == shown


def test_a_wrapped_line_is_no_command():
    text = render_text(Document("t", [Paragraph("word " * 19 + "::error::x")]))
    assert r"  \::error::x" in text.splitlines()


def test_commands_are_fenced_in_markdown():
    assert "```\npytest a \\\n  --b\n```" in render_markdown(Document("t", [Code("pytest a \\\n  --b")]))
