"""Rotary position embedding on a CPU: argument checks, conventions, work, layouts."""

import pytest

from kernels import rope
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret
from pytest_cutile.tile.compiler import pretend_gpu, record_launches

torch = pytest.importorskip("torch")


def half(*shape, **kwargs):
    return torch.ones(shape, dtype=torch.float16, **kwargs)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"q": None}, TypeError, "q must be a torch.Tensor, got NoneType"),
        (
            {"q": torch.ones(1, 2, 3, 8)},
            TypeError,
            "q has dtype torch.float32; supported are float16, bfloat16",
        ),
        (
            {"k": half(1, 2, 3, 8).bfloat16()},
            TypeError,
            "k has dtype torch.bfloat16, but q has torch.float16",
        ),
        ({"sin": torch.ones(5, 4)}, TypeError, "sin has dtype torch.float32, but cos has torch.float16"),
        (
            {"cos": half(5, 4).bfloat16(), "sin": half(5, 4).bfloat16()},
            TypeError,
            "cos has dtype torch.bfloat16, but q has torch.float16; use that or torch.float32",
        ),
        ({"k": half(1, 2, 3, 8, device="meta")}, ValueError, "k is on meta, but q is on cpu"),
        (
            {"cos": half(5, 4, device="meta"), "sin": half(5, 4, device="meta")},
            ValueError,
            "cos is on meta, but q is on cpu",
        ),
        ({"q": half(2, 3, 8)}, ValueError, r"q must be \[batch, heads, tokens, D\], got shape \[2, 3, 8\]"),
        ({"k": half(3, 8)}, ValueError, r"k must be \[batch, heads, tokens, D\], got shape \[3, 8\]"),
        ({"k": half(1, 1, 4, 8)}, ValueError, r"k must be \[1, H_kv, 3, 8\], but is \[1, 1, 4, 8\]"),
        ({"cos": half(4)}, ValueError, r"matrices \[positions, R / 2\] of one shape, got \[4\] and \[5, 4\]"),
        ({"sin": half(5, 3)}, ValueError, r"of one shape, got \[5, 4\] and \[5, 3\]"),
        (
            {"cos": half(5, 8), "sin": half(5, 8)},
            ValueError,
            "cos has 8 angles per position, which turn 16 dimensions of 8; pass 1 to 4",
        ),
        ({"cos": half(5, 0), "sin": half(5, 0)}, ValueError, "cos has 0 angles per position"),
        ({"offset": 1.0}, TypeError, "offset must be an integer, got float"),
        ({"offset": True}, TypeError, "offset must be an integer, got bool"),
        ({"offset": -1}, ValueError, "offset must not be negative, got -1"),
        ({"offset": 3}, ValueError, "3 tokens from position 3 on need 6 rows of cos, but it has 5"),
    ],
)
def test_rope_says_what_is_wrong(changed, error, message):
    arguments = {"q": half(1, 2, 3, 8), "k": half(1, 1, 3, 8), "cos": half(5, 4), "sin": half(5, 4)}
    with pytest.raises(error, match="^rope: .*" + message):
        rope.rope(**(arguments | changed))


def test_nothing_is_launched_for_nothing():
    q, k = rope.rope(half(1, 2, 0, 8), half(1, 1, 0, 8), half(5, 4), half(5, 4))
    assert (q.shape, k.shape) == ((1, 2, 0, 8), (1, 1, 0, 8))


def test_keys_may_have_no_heads():
    with interpret("sm_90"):
        q, k = rope.rope(
            half(1, 2, 3, 8, device="cuda"), half(1, 0, 3, 8, device="cuda"), *[half(5, 4, device="cuda")] * 2
        )
        assert q.tolist() == [[[[0.0] * 4 + [2.0] * 4] * 3] * 2]
        assert k.shape == (1, 0, 3, 8)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def test_half_split_is_the_convention_of_transformers():
    torch.manual_seed(0)
    q, k = (torch.randn(2, heads, 7, 16, dtype=torch.float64) for heads in (4, 2))
    angles = torch.rand(7, 8, dtype=torch.float64) * 6
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    for x, got in zip((q, k), rope.reference(q, k, cos[:, :8], sin[:, :8], 0, False), strict=True):
        torch.testing.assert_close(got, x * cos + rotate_half(x) * sin)


def test_interleaved_is_multiplication_of_complex_numbers():
    torch.manual_seed(0)
    q, k = (torch.randn(2, heads, 7, 16, dtype=torch.float64) for heads in (4, 2))
    angles = torch.rand(12, 6, dtype=torch.float64) * 6
    turns = torch.polar(torch.ones_like(angles), angles)[5:]
    for x, got in zip((q, k), rope.reference(q, k, angles.cos(), angles.sin(), 5, True), strict=True):
        pairs = torch.view_as_complex(x[..., :12].unflatten(-1, (6, 2)).contiguous())
        torch.testing.assert_close(got[..., :12], torch.view_as_real(pairs * turns).flatten(-2))
        assert torch.equal(got[..., 12:], x[..., 12:])


def test_scores_depend_on_distances_alone():
    """What the embedding is for: q at position s times k at t is a function of s - t."""
    torch.manual_seed(0)
    x = torch.randn(16, dtype=torch.float64).expand(1, 1, 10, 16)
    positions, frequencies = torch.arange(10).double(), 0.3 ** torch.arange(8).double()
    angles = torch.outer(positions, frequencies)
    for interleaved in (False, True):
        q, k = rope.reference(x, x.flip(3), angles.cos(), angles.sin(), 0, interleaved)
        scores = q[0, 0] @ k[0, 0].T
        torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])


def test_outputs_keep_the_layout_and_inputs_their_values():
    with interpret("sm_90"):
        q = torch.rand(2, 5, 4, 16, device="cuda").half().transpose(1, 2)
        before = q.clone()
        table = torch.rand(9, 8, device="cuda")
        q_out, k_out = rope.rope(q, q[:, :2], table, table, offset=2)
        assert q_out.stride() == q.stride()
        assert k_out.shape == (2, 2, 5, 16)
        assert torch.equal(q, before)
        assert torch.equal(q_out[:, :2], k_out)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "config", [rope.RopeConfig(tile_elements=64, tile_h=1), rope.RopeConfig(tile_elements=512, tile_h=8)]
)
def test_tiles_of_any_size_give_the_same(config, interleaved):
    torch.manual_seed(0)
    with interpret("sm_90"):
        q, k = (torch.randn(1, heads, 9, 24, device="cuda").half() for heads in (3, 2))
        cos, sin = (torch.rand(9, 8, device="cuda") for _ in range(2))
        expected = rope.rope(q, k, cos, sin, interleaved=interleaved)
        got = rope.rope(q, k, cos, sin, interleaved=interleaved, config=config)
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def launched_grid(q):
    """Return the grid for q, and for k of as many heads."""

    def launch():
        table = torch.empty(q.shape[2], 8, device="cuda", dtype=torch.float16)
        rope.rope(q, q, table, table)

    (launched,) = record_launches(launch, "sm_90")
    return launched.grid, launched.args[-1]


def test_neighbouring_blocks_take_what_lies_together(monkeypatch):
    """Tiles are 128 tokens of one head: 2048 elements, as 16 dimensions turn."""
    with pretend_gpu("sm_90"):
        inside = torch.empty(2, 300, 5, 16, device="cuda", dtype=torch.float16).transpose(1, 2)
        outside = torch.empty(2, 5, 300, 16, device="cuda", dtype=torch.float16)
    assert launched_grid(outside) == ((3, 10, 2), False)
    assert launched_grid(inside) == ((10, 3, 2), True)
    # More tokens than there are blocks on the second axis.
    monkeypatch.setattr(rope, "MAX_GRID", (2**24 - 1, 2, 2))
    assert launched_grid(inside) == ((3, 10, 2), False)


def test_work_equals_what_a_hand_computes():
    expected = {
        # 2 * 2*16 * 32768*64 * 2 + 2 * 32768*32 * 2
        "fp16-1x16x32768x64": Work(bytes=272629760, dtype="float16"),
        # 2 * (6+1) * 37*128 * 2 + 2 * 37*64 * 4
        "fp16-1x6_1x37x128-fp32_tables": Work(bytes=151552, dtype="float16"),
        # 8 * 2 * 2*16 * 2048*256 * 2 + 2 * 2048*32 * 2: the tables are those of all 8.
        "fp16-8x16x2048x256-r64-interleaved": Work(bytes=537133056, dtype="float16"),
    }
    for case in rope.SPEC.cases:
        if case.name in expected:
            assert rope.SPEC.work_of(case) == expected.pop(case.name)
    assert not expected


@pytest.mark.parametrize("arch", [*rope.CONFIGS, "sm_999"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_tiles_hold_whole_heads(arch, interleaved):
    for itemsize in (2, 4):
        config = rope.choose_config(arch, interleaved=interleaved, table_itemsize=itemsize)
        assert config.tile_elements % config.tile_h == 0
