"""Ahead-of-time compilation of the kernels that launch code launches. Needs no GPU and no driver."""
