"""Hardware counters of a GPU, as Nsight Compute reads them, and what they say of a kernel.

`ncu.py` runs the tool on a command, `counters.py` reads its output, `limits.py` says what bounds a kernel.
"""
