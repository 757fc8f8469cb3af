"""Keycloak: the users of a realm, their groups and roles."""
