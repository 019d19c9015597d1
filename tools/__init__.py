"""What users run on their GPU besides the gates: compare with other libraries, tune, profile."""
