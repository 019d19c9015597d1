"""What `python -m tools.tune_kernels` does with a case, and how configurations are replaced in files."""
