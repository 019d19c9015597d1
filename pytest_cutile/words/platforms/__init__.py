"""GPUs and architectures: their limits, their names, their occupancy."""
