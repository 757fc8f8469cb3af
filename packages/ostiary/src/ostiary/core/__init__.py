"""Shared by the doors: knows time, secrets and processes, and never a vendor."""
