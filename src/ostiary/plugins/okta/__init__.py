"""Okta: its users and their groups."""
