"""What everything else is said in: declarations, results, verdicts, settings, documents, GPUs as data.

Nothing here imports another wing, torch, cuda.tile or pytest. Read `spec.py`, `results.py` and `verdicts.py`
first: a case is declared, asked about, and answered in their terms. `timing.py` has the terms of a
measurement, `platforms/` what is known of architectures and GPUs, `document.py` and `text.py` what messages
and reports are made of. The rest are small helpers: `statistics.py`, `quantities.py`, `locking.py`,
`temporary.py`.
"""
