"""The speed gate: evidence, and the rule that makes a verdict of it."""
