"""Counts and rates that the processes of one machine can share."""
