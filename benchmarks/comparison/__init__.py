"""What `python -m benchmarks.compare_kernels` does with a case, the goals, and the page it writes."""
