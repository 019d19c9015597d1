"""Compares what a launch returned with the reference."""
