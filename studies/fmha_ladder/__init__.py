"""Attention step by step, from the plain algorithm to the kernel in use: README.md tells it."""
