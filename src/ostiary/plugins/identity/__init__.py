"""The bundled identity providers."""
