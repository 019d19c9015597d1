"""Pure Python: specs, statistics, verdicts, baselines, report text. Imports neither pytest nor torch."""
