"""A process that keeps registry credentials in memory for all who pull on this machine, and those who ask it."""
