"""Baselines: what is stored of earlier runs, and how.

`entries.py` is what is stored, `select.py` says which of it a case is compared with, and `store.py` is what
other wings ask. `files.py` alone knows the JSON files.
"""
