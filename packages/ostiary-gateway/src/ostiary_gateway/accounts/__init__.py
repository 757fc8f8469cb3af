"""Identities for programs: service accounts of the gateway's own, and named API tokens of people and accounts.

service_account    an account, and how it is stored     service_accounts   create, list, disable, delete; their tokens
api_tokens         named tokens: create, list, revoke   holder_checks      is the holder of a token still somebody

Called by the gateway's own API and by the pages. An account is declared in the configuration or kept in the token
store as an object; a token of either kind is a session with one access token and nothing to renew it with.
"""
