"""Attention over sequence lengths: which step of the ladder pays where, beside PyTorch and TileGym."""
