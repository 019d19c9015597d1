"""Attention as an operator of PyTorch's, beside all of its back ends, by length, dimension and dtype."""
