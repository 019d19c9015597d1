"""Kernels of another git revision, in the same process as those of the working tree."""
