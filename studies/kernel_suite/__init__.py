"""TileGym's benchmarks, all kernels and sizes, beside TileGym and PyTorch: README.md tells it."""
