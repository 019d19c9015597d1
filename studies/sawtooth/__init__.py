"""Attention whose blocks walk the keys forward and backward in turn, so that the L2 keeps more of them."""
