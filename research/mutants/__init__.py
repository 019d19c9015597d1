"""Real kernels with planted bugs, and what finds them: see `python -m research.mutants --help`."""
