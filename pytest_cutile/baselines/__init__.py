"""Baselines: the only place that knows how they are stored."""
