"""A daemon that caches registry credentials in memory for all pulls on this machine, and its client."""
