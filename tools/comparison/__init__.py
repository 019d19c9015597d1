"""What `python -m tools.compare_kernels` does with a case, the goals, and the page it writes."""
