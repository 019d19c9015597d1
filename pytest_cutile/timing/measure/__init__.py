"""Timing launches: the timer, the placement of buffers, the reference workload."""
