"""The bundled plugins. They use only interfaces that are available to third-party plugins."""
