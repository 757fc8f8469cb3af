"""The bundled token store providers."""
