"""Mutation testing of a check: mutants of right outputs and of inputs, and which of them the check kills."""
