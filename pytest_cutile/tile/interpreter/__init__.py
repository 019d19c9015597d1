"""Interprets kernels on the CPU: no GPU, no driver, and what a GPU hides is a fault with file and line.

`api.py` has the context that interprets; `pytest_cutile.interpreter` has the names for users. Needs neither
pytest nor the rest of this plugin.
"""
