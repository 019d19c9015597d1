"""cuTile kernels to learn from, one per file, each gated by pytest-cutile through its `SPEC`.

Every file reads from top to bottom: the formula, the configurations, the kernel, the launcher that users
call, the reference, the inputs and the cases. Read them in this order:

1. `softmax`: rows in registers, tiles that stick out, a running maximum.
2. `swiglu`: the simplest kernel here, and how to keep memory busy.
3. `rms_norm`: several inputs, an optional one, two outputs.
4. `matmul`: tensor cores, TMA, blocks that share the L2.
5. `fmha`: two products and a softmax that stay on the chip.

The other kernels build on these. `silu_and_mul`, `dropout` and `rope` are bound by memory, like `swiglu`.
`bmm`, `group_gemm` and `moe` (with `moe_routing`) are matrix products, like `matmul`. `mla`,
`attention_decode` and `mla_decoding` are attention, like `fmha`.

`rms_norm_backward` and `swiglu_backward` compute gradients, and tie them to the forward kernels for
`torch.autograd`.

Shared modules:

- `_launch`: host code of every launcher: architecture and size of the GPU, hints, argument checks.
- `_configs`: checks of the fields of a configuration.
- `_dtypes`: names and sizes of dtypes, and the dtypes that a result may have.
- `_tiles`: tile code for any kernel: loads with and without checks, the order of blocks.
- `_division`: fast integer division by a number that all blocks of a launch share.
- `_gemm`: matrix products: the loop along K, the loop over tiles, the choice of tiles.
- `_online_softmax`: a softmax over scores that arrive one tile at a time.
- `_attention`: attention of many queries: configuration, the loop over the keys, the order of tiles.
- `_split_kv`: decoding: keys split among several blocks, and the merge of their results.
- `_cases`: inputs that test kernels: other memory layouts, and hard inputs for attention.

The other launchers compute one pass only. No gradient flows through them, even if their inputs require one,
and no warning says so.
"""
