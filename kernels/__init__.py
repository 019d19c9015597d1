"""cuTile kernels to learn from, one per file, each gated by pytest-cutile through its `SPEC`."""
