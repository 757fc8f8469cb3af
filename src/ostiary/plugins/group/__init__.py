"""The bundled group providers."""
