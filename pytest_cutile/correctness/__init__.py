"""Whether a kernel is right: bounds from error analysis, guards, and what a failure says."""
