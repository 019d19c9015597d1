"""Measured stories about kernels, each repeated on any GPU by one command: `python -m studies list`."""
