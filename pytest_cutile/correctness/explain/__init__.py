"""Says what a failed comparison looks like."""
