"""Signed tokens (JWT) of issuers: their keys, and whether a token is to be believed."""
