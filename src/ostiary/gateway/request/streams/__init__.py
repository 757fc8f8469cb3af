"""Exchanges that are open: counted as streams when they take long, and cut when they are no longer allowed."""
