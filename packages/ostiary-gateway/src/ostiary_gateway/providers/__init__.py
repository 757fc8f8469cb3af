"""The bundled plugins, a folder per plugin type. They use nothing that a third party could not use."""
