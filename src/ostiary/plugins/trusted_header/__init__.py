"""A proxy in front that authenticates and names the user in headers."""
