"""Large cases checked in parts: the same verdicts as in one piece, for what is declared and holds."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_cutile.correctness.check import CheckReport, check_kernel
from pytest_cutile.correctness.error_model import parts
from pytest_cutile.correctness.error_model.parts import OUTPUT, Part, cut
from pytest_cutile.correctness.error_model.spread import matrix_view
from pytest_cutile.correctness.errors import KernelMismatch, ReferenceFailed
from pytest_cutile.correctness.guards import launch as launching
from pytest_cutile.words.spec import Axes

ROWS: Axes = {"x": ("rows",), OUTPUT: ("rows",)}
PRODUCT: Axes = {"a": ("m", None), "b": (None, "n"), OUTPUT: ("m", "n")}
HEADS: Axes = dict.fromkeys(("q", "k", "v", OUTPUT), ("batch", "heads"))


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cases are cut, too."""
    monkeypatch.setattr(launching, "SMALL_BYTES", 0)
    monkeypatch.setattr(parts, "PART_ELEMENTS", 1 << 10)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def launched(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax as an honest kernel computes it."""
    return torch.softmax(x.float(), -1).to(x.dtype)


# -- how a case is cut ------------------------------------------------------------------------------


def sizes(found: list[Part], name: str, tensor: torch.Tensor) -> set[tuple[int, ...]]:
    return {tuple(part.of(name, tensor).shape) for part in found}


def test_a_small_case_is_one_part():
    x = torch.empty(1024, 1024, device="meta")
    [part] = cut(ROWS, {"x": x}, x)
    assert part.is_whole
    assert part.of("x", x) is x


def test_rows_are_cut_until_a_part_is_small():
    x = torch.empty(1 << 14, 512, device="meta")
    found = cut(ROWS, {"x": x}, x)
    assert len(found) == 8
    assert sizes(found, "x", x) == {(1 << 11, 512)}


def test_parts_need_not_be_equal():
    x = torch.empty(10_007, 1024, device="meta")
    found = cut(ROWS, {"x": x}, x)
    assert sum(part.of("x", x).shape[0] for part in found) == 10_007
    assert {size for size, _ in sizes(found, "x", x)} == {625, 626}


def test_there_are_not_too_many_parts():
    x = torch.empty(1 << 20, 1024, device="meta")
    assert len(cut(ROWS, {"x": x}, x)) == parts.MOST_PARTS


def test_a_product_is_cut_along_both():
    a, b, c = (torch.empty(4096, 4096, device="meta") for _ in "abc")
    found = cut(PRODUCT, {"a": a, "b": b}, c)
    assert sizes(found, OUTPUT, c) == {(1024, 1024)}
    assert sizes(found, "a", a) == {(1024, 4096)}
    assert sizes(found, "b", b) == {(4096, 1024)}


def test_heads_that_share_keys_stay_together():
    q, k = torch.empty(2, 32, 1024, 128, device="meta"), torch.empty(2, 8, 1024, 128, device="meta")
    found = cut(HEADS, {"q": q, "k": k, "v": k}, q)
    assert sizes(found, "q", q) == {(1, 4, 1024, 128)}
    assert sizes(found, "k", k) == {(1, 1, 1024, 128)}


def test_what_is_broadcast_stays_whole():
    q, k = torch.empty(4, 32, 1024, 128, device="meta"), torch.empty(4, 1, 1024, 128, device="meta")
    found = cut(HEADS, {"q": q, "k": k, "v": k}, q)
    assert sizes(found, "q", q) == {(1, 8, 1024, 128)}
    assert sizes(found, "k", k) == {(1, 1, 1024, 128)}


def test_a_tensor_with_fewer_dimensions_is_not_cut():
    x = torch.empty(1 << 25, device="meta")
    axes: Axes = {"x": ("rows", None), OUTPUT: ("rows", None)}
    [part] = cut(axes, {"x": x}, x)
    assert part.is_whole


@pytest.mark.parametrize("shape", [(6, 5), (4, 6, 5), (30,), (2, 4, 6, 5)])
def test_each_element_is_in_one_part_and_where_its_place_says(shape):
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    axes = {OUTPUT: tuple("abcd"[: len(shape)])}
    counts = [min(size, 3) for size in shape]
    seen = torch.zeros_like(matrix_view(whole))
    for at in itertools.product(*map(range, counts)):
        ranges = {axis: (i, i + 1, n) for axis, i, n in zip("abcd", at, counts, strict=False)}
        part = Part(axes=axes, ranges=ranges)
        found, place = matrix_view(part.of(OUTPUT, whole)), part.position(whole)
        here = place.block(slice(0, found.shape[0]), slice(0, found.shape[1]))
        assert torch.equal(matrix_view(whole)[here], found)
        seen[here] += 1
        row, column = place.at(found.shape[0] - 1, found.shape[1] - 1)
        assert matrix_view(whole)[row, column] == found[-1, -1]
    assert bool((seen == 1).all())


# -- what a check says ------------------------------------------------------------------------------


def both(
    monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], *args: Any, independent: Axes, **options: Any
) -> tuple[CheckReport | str, CheckReport | str]:
    """Return what a check in one piece says, and one in parts: the report or the failure."""

    def said(axes: Axes | None) -> CheckReport | str:
        try:
            return check_kernel(fn, *args, independent=axes, vary_layout=False, **options)
        except KernelMismatch as mismatch:
            return str(mismatch)

    monkeypatch.setattr(launching, "SMALL_BYTES", 0)
    monkeypatch.setattr(parts, "PART_ELEMENTS", 1 << 12)
    values = dict(zip(independent, args, strict=False))
    assert len(cut(independent, values, fn(*args))) > 3
    return said(None), said(independent)


def same(one: CheckReport | str, other: CheckReport | str) -> None:
    """Compare two reports that passed: the same but for what depends on the noise that was drawn."""
    assert isinstance(one, CheckReport), one
    assert isinstance(other, CheckReport), other
    assert (one.elements, one.worst_ulps, one.bound) == (other.elements, other.worst_ulps, other.bound)
    assert one.reference_runs == other.reference_runs
    assert one.parts == 1 < other.parts
    for name in ("energy", "slope", "worst_error"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=0.5, abs=0.01)


def test_a_right_output_passes_with_the_same_figures(monkeypatch):
    same(*both(monkeypatch, launched, normal(203, 100), reference=softmax, reduction=100, independent=ROWS))


def test_blocks_of_a_product_pass_with_the_same_figures(monkeypatch):
    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.float() @ b.float()).to(a.dtype)

    a, b = normal(130, 64), normal(64, 90, seed=1)
    same(*both(monkeypatch, multiply, a, b, reference=torch.mm, reduction=64, independent=PRODUCT))


def test_outputs_of_several_kinds_pass_with_the_same_figures(monkeypatch):
    def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        values, indices = x.sort(dim=1, descending=True)
        return values, indices, x.sum(1)

    x = normal(4200, 4, dtype=torch.float32)
    same(*both(monkeypatch, largest, x, reference=largest, reduction=4, independent=ROWS))


def test_a_given_tolerance_passes_with_the_same_figures(monkeypatch):
    one, other = both(
        monkeypatch, launched, normal(203, 100), reference=softmax, rtol=1e-3, reduction=100, independent=ROWS
    )
    assert isinstance(one, CheckReport)
    assert isinstance(other, CheckReport)
    assert other.worst_error == one.worst_error
    assert other.looser == pytest.approx(one.looser, rel=0.1)


@pytest.mark.parametrize("at", [(0, 0), (101, 57), (202, 99)])
def test_a_wrong_element_is_found_where_it_is(monkeypatch, at):
    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = launched(x)
        y[at] = 0.75
        return y

    one, other = both(
        monkeypatch, wrong, normal(203, 100), reference=softmax, reduction=100, independent=ROWS
    )
    assert isinstance(one, str)
    assert isinstance(other, str)
    assert f"worst element [{at[0]}, {at[1]}]" in other
    assert "1 of 20,300 elements" in other
    differ = "worst element", "allowed", "chance", "compared in"  # by the noise that was drawn, or the parts
    texts = [
        [line.split(":")[0] for line in said.splitlines() if not any(each in line for each in differ)]
        for said in (one, other)
    ]
    assert "compared in" in other
    assert "compared in" not in one
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_errors_that_no_part_shows_alone_are_added_up(monkeypatch):
    """A factor within the bound of each element, in the mean over 60 rows no more than chance."""

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return (x.double() * 1.7 * (1 + 4e-6)).half()

    def right(x: torch.Tensor) -> torch.Tensor:
        return x * 1.7

    x = normal(1500, 60, dtype=torch.float32)
    few = check_kernel(wrong, x[:60], reference=right, reduction=4096)
    assert few.slope < 0.5
    for said in both(monkeypatch, wrong, x, reference=right, reduction=4096, independent=ROWS):
        assert isinstance(said, str)
        assert "slope" in said
        assert "T1" not in said


@pytest.mark.usefixtures("in_parts")
def test_a_wrong_shape_is_told():
    with pytest.raises(KernelMismatch, match=r"in one of \d+ parts of both, in structure or shape: \S+ "):
        check_kernel(lambda x: launched(x)[:, :50], normal(64, 100), reference=softmax, independent=ROWS)


def test_a_small_case_is_not_cut(monkeypatch):
    monkeypatch.setattr(parts, "PART_ELEMENTS", 1)
    rows = []

    def reference(x: torch.Tensor) -> torch.Tensor:
        rows.append(len(x))
        return softmax(x)

    check_kernel(launched, normal(64, 100), reference=reference, reduction=100, independent=ROWS)
    assert {*rows} == {64}


def causal(x: torch.Tensor, *, origin: dict[str, tuple[int, ...]] | None = None) -> torch.Tensor:
    """Keep what is left of the diagonal, as a mask of causal attention does."""
    row, column = origin["x"] if origin else (0, 0)
    return x.tril(row - column)


@pytest.mark.parametrize("axes", [ROWS, {"x": ("rows", "columns"), OUTPUT: ("rows", "columns")}])
def test_a_reference_is_told_where_its_part_lies(monkeypatch, axes):
    for found in both(monkeypatch, lambda x: x.tril(), normal(256, 300), reference=causal, independent=axes):
        assert isinstance(found, CheckReport)


@pytest.mark.usefixtures("in_parts")
def test_the_place_of_a_part_counts_from_the_whole():
    seen = set()

    def reference(x: torch.Tensor, *, origin: dict[str, tuple[int, ...]]) -> torch.Tensor:
        seen.add((origin["x"], x.shape[0]))
        return softmax(x)

    check_kernel(launched, normal(96, 128), reference=reference, reduction=128, independent=ROWS)
    assert {place for place, rows in seen if rows == 6} == {(row, 0) for row in range(0, 96, 6)}


# -- what is declared wrongly -----------------------------------------------------------------------


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize(
    ("reference", "axes"),
    [
        pytest.param(lambda x: torch.softmax(x, 0), ROWS, id="a sum over what is cut"),
        pytest.param(lambda x: x.tril(), ROWS, id="a mask that depends on the row"),
        pytest.param(
            lambda x: x * (torch.arange(x.numel()).view_as(x) % 3), ROWS, id="values that depend on the index"
        ),
        pytest.param(lambda x: x.roll(1, 0), ROWS, id="neighbours"),
        pytest.param(lambda x: x.roll(2, 0), ROWS, id="the row after next"),
        pytest.param(softmax, {"x": (None, "n"), OUTPUT: (None, "n")}, id="the dimension of the sum"),
        pytest.param(lambda x: x[:1] * x, ROWS, id="the first row"),
    ],
)
def test_a_wrong_declaration_is_an_error(reference, axes):
    def fn(x: torch.Tensor) -> Any:
        return reference(x.double()).to(x.dtype)

    axis = next(each for each in axes[OUTPUT] if each)
    with pytest.raises(ReferenceFailed, match=f"not independent along '{axis}'"):
        check_kernel(fn, normal(256, 64), reference=reference, reduction=64, independent=axes)


@pytest.mark.usefixtures("in_parts")
def test_a_reference_that_raises_for_parts_says_that_it_is_one():
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x * torch.full((256,), 0.5, dtype=x.dtype)

    with pytest.raises(ReferenceFailed, match=r"for a part of its arguments, as independent=.* raised"):
        check_kernel(
            lambda x: halves(x.float()).half(),
            normal(64, 256),
            reference=halves,
            independent={"x": (None, "n"), OUTPUT: (None, "n")},
        )


@pytest.mark.parametrize(
    ("axes", "why"),
    [
        ({"x": ("rows",)}, "the result"),
        ({"x": "rows", OUTPUT: ("rows",)}, "tuples"),
        ({"x": ("rows", "rows"), OUTPUT: ("rows",)}, "twice"),
        ({"x": ("rows", "columns"), OUTPUT: ("rows",)}, "columns"),
        (["rows"], "tuples"),
        ({"X": ("rows",), OUTPUT: ("rows",)}, "'X'.*no argument; there are .'x'"),
    ],
)
def test_names_that_say_nothing_are_refused(axes, why):
    with pytest.raises(ValueError, match=f"independent must name(.|\n)*{why}"):
        check_kernel(launched, normal(4, 4), reference=softmax, independent=axes)
