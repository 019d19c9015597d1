"""Runs launch code as if on a GPU of a given architecture, and records what it launches."""
