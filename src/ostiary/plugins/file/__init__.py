"""Groups and their members in a YAML file."""
