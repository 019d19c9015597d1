"""cuTile kernels to learn from, one per file, each gated by pytest-cutile through its `SPEC`.

Every file reads from top to bottom: the formula, the configurations, the kernel, the launcher that users
call, and what it is gated with. A newcomer best reads them in this order:

1. `softmax`: rows in registers, tiles that stick out, a running maximum.
2. `swiglu`: the simplest kernel here, and how to keep memory busy.
3. `rms_norm`: several inputs, an optional one, two outputs.
4. `matmul`: tensor cores, TMA, blocks that share the L2.
5. `fmha`: two products and a softmax that stay on the chip.

Then the rest: `silu_and_mul`, `dropout` and `rope` move memory as `swiglu` does; `bmm`, `group_gemm` and
`moe` (with `moe_routing`) multiply as `matmul` does; `mla`, `attention_decode` and `mla_decoding` attend as
`fmha` does.

What several of them share:

- `_launch`: on the host: the GPU's architecture and size, hints, argument checks, how a row is cut.
- `_configs`: what the fields of a configuration may hold.
- `_dtypes`: names and sizes of dtypes, and which a result may have.
- `_tiles`: tile code for any kernel: loads with and without checks, the order of blocks.
- `_division`: by what is the same in all blocks of a launch, as a multiplication.
- `_gemm`: of matrix products: the walk along K, the walk over tiles, the choice of tiles.
- `_online_softmax`: of attention: a softmax whose scores come a tile at a time.
- `_attention`: of attention of many queries: its configuration, the walk along the keys, the order of tiles.
- `_split_kv`: of decoding: keys cut into parts for several blocks, and the parts merged again.
- `_cases`, `_attention_inputs`: of what kernels are gated with: cases of other layouts, inputs of attention.

Launchers compute forward only, as each says: no gradient flows through them, whether or not their inputs
require one, and nothing warns of that.
"""
