"""Requests of browsers to web applications: those with a session, those without, and those that need none."""
