"""Identities of workloads: the gateway's service accounts, and named API tokens of users and accounts.

An account is declared in the configuration or stored in the token store as an object. A token of an account and an API
token are sessions with one access token and no refresh token.
"""
