"""Example programs, one per folder. The end-to-end tests run them all."""
