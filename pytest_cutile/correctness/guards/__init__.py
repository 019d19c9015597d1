"""What surrounds a launch: poisoned outputs, redzones around inputs, other layouts of the same values."""
