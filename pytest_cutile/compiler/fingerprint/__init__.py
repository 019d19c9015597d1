"""What tells two kernels apart: their source, their machine code, their launch."""
