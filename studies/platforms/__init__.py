"""GPUs side by side from stored baselines, beside what NVIDIA published: README.md tells it."""
