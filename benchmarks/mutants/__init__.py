"""Real kernels with planted bugs, and what finds them: see `python -m benchmarks.mutants --help`."""
