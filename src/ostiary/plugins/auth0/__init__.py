"""Auth0: its users."""
