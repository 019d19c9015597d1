"""What a launch is: traced, translated, compiled, read and interpreted, with no GPU.

In this order: `compiler/` (a launcher is traced, its launches are exported and compiled), `tensors/`
(dtypes and values; tensors of a trace need no memory, so the two folders know each other), `static/` (what
the machine code says), `interpreter/` (what launches compute on the CPU). `forking.py` and `fork_server.py`
run launch code where nothing that it keeps is seen again.
"""
