"""Tensors, their dtypes and values: what inputs are made of."""
