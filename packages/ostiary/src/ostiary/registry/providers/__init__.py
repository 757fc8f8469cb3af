"""A credential provider to try the registry door with."""
