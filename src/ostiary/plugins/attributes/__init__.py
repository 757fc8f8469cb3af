"""The bundled attributes providers."""
