"""Experiments behind the numbers in the package, to run again when those change."""
