"""Exec plugins: running them, the plugin policy, their environment."""
