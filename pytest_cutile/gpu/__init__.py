"""What touches CUDA or NVML: devices, the timer, tensors."""
