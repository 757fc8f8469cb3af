"""What the workers of one gateway tell and ask each other."""
