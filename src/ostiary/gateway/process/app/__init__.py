"""What a worker opens for a configuration, and closes with it."""
