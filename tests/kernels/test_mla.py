"""Latent attention: its arguments, its work, and its reference against PyTorch's attention."""

import itertools

import pytest

from kernels import _attention, mla
from kernels._attention import AttentionConfig
from pytest_cutile import Work
from pytest_cutile.interpreter import interpret

torch = pytest.importorskip("torch")


def half(*shape):
    return torch.zeros(shape, dtype=torch.float16)


def operands(b=1, h=2, m=3, n=5, **changes):
    shapes = {
        "q": (b, h, m, 128),
        "q_pe": (b, h, m, 64),
        "k": (b, h, n, 128),
        "k_pe": (b, 1, n, 64),
        "v": (b, h, n, 128),
    }
    return {name: half(*shape) for name, shape in shapes.items()} | changes


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"k_pe": None}, TypeError, "k_pe must be a torch.Tensor, got NoneType"),
        ({"v": torch.zeros(1, 2, 5, 128)}, TypeError, "v has dtype torch.float32; supported are float16"),
        ({"q_pe": torch.zeros(1, 2, 3, 64).bfloat16()}, TypeError, "q_pe has dtype .* but q has"),
        ({"q": half(2, 3, 128)}, ValueError, r"q must be \[batch, heads, .* got shape \[2, 3, 128\]"),
        ({"q": half(1, 2, 3, 64)}, ValueError, r"q must be \[B, H, M, 128\], but is \[1, 2, 3, 64\]"),
        ({"q_pe": half(1, 1, 3, 64)}, ValueError, r"q_pe must be \[1, 2, 3, 64\], but is \[1, 1, 3"),
        ({"k": half(1, 1, 5, 128)}, ValueError, r"k must be \[1, 2, 5, 128\], but is \[1, 1, 5"),
        ({"k_pe": half(1, 2, 5, 64)}, ValueError, r"k_pe must be \[1, 1, 5, 64\], but is \[1, 2, 5"),
        ({"v": half(1, 2, 4, 128)}, ValueError, r"v must be \[1, 2, 5, 128\], but is \[1, 2, 4"),
        ({"v": half(2, 5, 128)}, ValueError, r"v must be \[1, 2, 5, 128\], but is \[2, 5, 128\]"),
        ({"scale": 0.0}, ValueError, "scale must be a positive number, got 0.0"),
        ({"scale": float("inf")}, ValueError, "scale must be a positive number, got inf"),
        ({"scale": 1e-46}, ValueError, "scale must be 8.15e-39 to .* got 1e-46"),
        ({"scale": torch.tensor(0.1)}, TypeError, "scale must be a number, got Tensor"),
        ({"causal": None}, TypeError, "causal must be a bool, got NoneType"),
        ({"out_dtype": torch.float32}, TypeError, "out_dtype is torch.float32; .* supported are torch"),
    ],
)  # fmt: skip
def test_mla_says_what_is_wrong(changes, error, message):
    with pytest.raises(error, match="^mla: .*" + message):
        mla.mla(**operands(**changes))


def test_nothing_is_launched_for_nothing():
    assert mla.mla(**operands(m=0)).shape == (1, 2, 0, 128)
    assert torch.equal(mla.mla(**operands(n=0)), torch.zeros(1, 2, 3, 128, dtype=torch.float16))


def test_persistent_blocks_compute_every_tile(monkeypatch):
    monkeypatch.setattr(_attention, "count_sms", lambda: 3)
    torch.manual_seed(0)
    made = {name: torch.randn(t.shape).half() for name, t in operands(b=2, m=40, n=20).items()}
    with interpret("sm_90"):
        o = mla.mla(**made, config=AttentionConfig(tile_m=16, tile_n=16, persistent=True))
    expected = mla.reference(**{name: t.double() for name, t in made.items()})
    torch.testing.assert_close(o.double(), expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(("m", "n"), [(7, 7), (7, 4), (4, 7)])
@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_torchs_attention_over_both_parts(m, n, causal):
    torch.manual_seed(0)
    made = {name: torch.randn(t.shape, dtype=torch.float64) for name, t in operands(b=2, m=m, n=n).items()}
    expected = torch.nn.functional.scaled_dot_product_attention(
        torch.cat((made["q"], made["q_pe"]), -1),
        torch.cat((made["k"], made["k_pe"].expand(-1, 2, -1, -1)), -1),
        made["v"],
        is_causal=causal,
    )
    torch.testing.assert_close(mla.reference(**made, causal=causal), expected)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        # 2 * 4*16 * 2048*2049/2 * (128 + 64 + 128) flops;
        # 2 bytes * 4 * (16*2048 * (192 + 128 + 128 + 128) + 2048*64)
        (
            {"b": 4, "h": 16, "m": 2048, "n": 2048, "dtype": "bfloat16", "causal": True},
            Work(flops=85941288960, bytes=152043520, dtype="bfloat16"),
        ),
        # 2 * 2 * 100*50 * 320; Q 2*100*192, K and V 2*50*256, K_pe 50*64, and O 2*100*128 of two bytes
        (
            {
                "b": 1,
                "h": 2,
                "m": 100,
                "n": 50,
                "dtype": "float8_e5m2",
                "causal": False,
                "out_dtype": "float16",
            },
            Work(flops=6400000, bytes=118400, dtype="float8_e5m2"),
        ),
    ],
)
def test_work_equals_what_a_hand_computes(params, expected):
    assert mla.work(**params) == expected


def test_reduction_is_the_longer_sum():
    assert mla.longest_sum(b=1, h=1, m=300, n=500, dtype="float16", causal=True) == 300
    assert mla.longest_sum(b=1, h=1, m=300, n=500, dtype="float16", causal=False) == 500
    assert mla.longest_sum(b=1, h=1, m=30, n=50, dtype="float16", causal=False) == 192


@pytest.mark.parametrize(
    "arch", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_121", "x"]
)
def test_every_architecture_has_a_configuration(arch):
    for causal, itemsize in itertools.product((False, True), (1, 2)):
        config = mla.choose_config(arch, causal=causal, itemsize=itemsize)
        assert config.tile_m >= 64
        assert config.transpose_v == (arch == "sm_90" and itemsize == 1)
