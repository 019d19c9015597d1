"""Everything that touches torch, CUDA or NVML."""
