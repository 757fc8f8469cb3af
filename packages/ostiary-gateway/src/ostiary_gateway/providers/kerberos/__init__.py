"""Kerberos: people sign in with the ticket that they have anyway."""
