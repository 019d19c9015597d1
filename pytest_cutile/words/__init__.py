"""What everything else is said in: declarations, results, verdicts, settings, documents, GPUs as data.

Nothing here imports another wing, torch, cuda.tile or pytest. Read `spec.py`, `results.py` and
`verdicts.py` first: a case is declared, asked about, and answered in their terms. `settings.py` is what the
user asked for, `errors.py` what cannot be answered. `timing.py` has the terms of a measurement,
`formats.py` those of dtypes, `platforms/` what is known of architectures and GPUs. Messages and reports are
made of `document.py` and `text.py`. The rest are small helpers, such as `statistics.py` and `locking.py`.
"""
