"""What the compiler made of a kernel: facts, and the rules that compare them."""
