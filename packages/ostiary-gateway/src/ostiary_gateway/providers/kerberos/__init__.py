"""Kerberos: users sign in with the ticket that their system already has."""
