"""Whether a kernel is right: bounds from error analysis, guards, and what a failure says.

Begin with `check.py`: its docstring has the way of one check through the folders.
"""
