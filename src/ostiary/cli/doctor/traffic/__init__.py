"""Both sides of the proxy: what is sent to it, and what arrives behind it."""
