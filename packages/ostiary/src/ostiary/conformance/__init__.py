"""Checks of plugins, credential providers and their configuration, and of credentials at their registry."""
