"""What is remembered for the next caller: bounded maps, an expiring cache, and work that runs once for many."""
