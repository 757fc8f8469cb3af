"""Checks of what others wrote: a credential provider, its configuration, a credential at its registry."""
