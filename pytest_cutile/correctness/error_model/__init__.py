"""How far rounding may move each element of a reference."""
