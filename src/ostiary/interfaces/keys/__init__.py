"""What opens keys that are kept elsewhere."""
