"""Client certificates, verified by the listener."""
