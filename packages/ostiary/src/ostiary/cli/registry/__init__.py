"""``ostiary registry``: credentials for an image."""
