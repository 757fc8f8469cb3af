"""What an operator asks of a policy before it is put to use: what changes, and for whom."""
