"""Tokens and sessions of the gateway: issue, find, refresh and revoke.

    sign-in -> issue -> (access token, refresh token)      request -> find -> user
                          refresh token -> renew -> a new pair, after identity and groups were checked again

An access token is short-lived and unscoped. A browser cookie is valid for the gateway's own pages only. No token
outlives its session. A refresh token can be used once. A second use means that the first response was lost or that the
token was stolen; the gateway cannot distinguish these, so the session ends.
"""

from __future__ import annotations

from ostiary_gateway.sessions.program_tokens import API_TOKENS_PER_USER, TOKENS_PER_USER, IssuedToken
from ostiary_gateway.sessions.records import (
    CLOCK_TOLERANCE,
    check_object,
    check_storable,
    check_text,
    check_tokens,
    check_use,
    end_of_prefix,
    later_of,
    too_many_objects,
)
from ostiary_gateway.sessions.revocations import (
    LARGEST_SKEW,
    check_revocation,
    ended_origins,
    ends,
    ends_token,
    origins_of,
)
from ostiary_gateway.sessions.tokens import (
    LIFETIME,
    REUSE_LEEWAY,
    SESSION_LIFETIME,
    SESSIONS_PER_USER,
    ApplicationTokens,
    Attested,
    BrowserSession,
    Issued,
    Recheck,
    Tokens,
    keeping_secret,
    unseal_hint,
    unseal_kept,
)
from ostiary_gateway.wire.token_format import (
    ACCESS_PREFIX,
    API_PREFIX,
    APPLICATION_PREFIX,
    BROWSER_PREFIX,
    LENGTH,
    RENEWAL_PREFIX,
    application_digest,
    digest,
    digest_hex,
    new_token,
    well_formed,
)

__all__ = [
    "ACCESS_PREFIX",
    "API_PREFIX",
    "API_TOKENS_PER_USER",
    "APPLICATION_PREFIX",
    "BROWSER_PREFIX",
    "CLOCK_TOLERANCE",
    "LARGEST_SKEW",
    "LENGTH",
    "LIFETIME",
    "RENEWAL_PREFIX",
    "REUSE_LEEWAY",
    "SESSIONS_PER_USER",
    "SESSION_LIFETIME",
    "TOKENS_PER_USER",
    "ApplicationTokens",
    "Attested",
    "BrowserSession",
    "Issued",
    "IssuedToken",
    "Recheck",
    "Tokens",
    "application_digest",
    "check_object",
    "check_revocation",
    "check_storable",
    "check_text",
    "check_tokens",
    "check_use",
    "digest",
    "digest_hex",
    "end_of_prefix",
    "ended_origins",
    "ends",
    "ends_token",
    "keeping_secret",
    "later_of",
    "new_token",
    "origins_of",
    "too_many_objects",
    "unseal_hint",
    "unseal_kept",
    "well_formed",
]
