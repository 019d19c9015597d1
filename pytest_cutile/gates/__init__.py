"""The gates: what is asked of each case, shared by the fixtures and by declared kernels."""
