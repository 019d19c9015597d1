"""The GPU: how NVML finds it, its condition, the lock that its users share, and errors that end a context."""
