"""How long a launch takes on a GPU, and why.

`gpu/` finds a GPU, locks it and watches its condition, `measure/` times launches on it, `profiling/` reads
Nsight Compute's counters. No verdict is made here.
"""
