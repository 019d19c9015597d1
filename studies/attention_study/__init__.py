"""Attention as a PyTorch operator, beside every back end of PyTorch's, by length, head dimension and dtype."""
