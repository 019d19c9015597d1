"""Language models end to end, with this project's kernels in place of PyTorch's operations."""
