"""The bundled admission providers."""
