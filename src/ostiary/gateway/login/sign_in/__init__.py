"""Signing in with an identity provider: from the first visit to what is issued in the end."""
