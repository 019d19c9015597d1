"""The speed gate: whether a case is as fast as its baseline.

The life of a case:

1. `gate.py` asks. A case whose code, launch and environment are a record's passes unmeasured
   (`unchanged.py`).
2. `find.py` finds what the case is compared with: the kernel of the baseline's commit, or stored times
   (`comparison.py`).
3. `timed_case.py` checks the kernel and prepares its launches (a `SpeedCase`, `case.py`); `gate.py` has them
   timed once: the screening.
4. `rule.py` is arithmetic on log ratios: it clears the case, or makes it a suspect (`pending.py`).
5. `suite.py` confirms all suspects of a run together, in fresh processes (`protocol.py`).
6. `judge.py` makes a verdict of the evidence, and `record.py` a record where baselines are updated.
"""
