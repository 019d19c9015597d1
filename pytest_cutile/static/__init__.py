"""What the compiler made of a kernel: facts, and the rules that compare them."""

MARGIN = 0.1
"""Growth of the predicted time or of spills, as a fraction, above which a kernel is worse, by default."""
