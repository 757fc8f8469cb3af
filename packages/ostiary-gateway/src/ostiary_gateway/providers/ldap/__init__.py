"""LDAP directories: sign-in and groups."""
