"""A single sign-on cookie with a signed token."""
