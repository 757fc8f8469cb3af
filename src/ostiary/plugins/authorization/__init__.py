"""The bundled authorization providers."""
