"""What a terminal shows of sound kernels, and of each planted bug."""
