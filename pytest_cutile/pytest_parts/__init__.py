"""What talks to pytest: options, collection, fixtures, reports of tests, the terminal.

`run.py` has what belongs to one run; `options/` makes its settings, `collection.py` its tests.
`reporting.py` collects results, `terminal.py` shows them. `isolated.py`, `supervised.py` and `workers.py`
say which process runs a test.
"""
