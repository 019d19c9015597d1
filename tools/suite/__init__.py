"""What the tuner and the comparison need of each kernel: cases, configurations worth trying, and peers."""
