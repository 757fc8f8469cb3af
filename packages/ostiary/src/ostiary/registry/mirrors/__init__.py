"""Registry mirrors: where a container runtime asks for an image, and the credentials for each of those places."""
