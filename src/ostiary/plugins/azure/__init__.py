"""Azure's Container Registry."""
