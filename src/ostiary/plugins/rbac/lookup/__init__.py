"""What the index is made of: maps that share what is the same with the version before, and roles ready to be asked."""
