"""Registry mirrors: where a container runtime pulls an image from, and the credentials for each endpoint."""
