"""Tokens of the gateway: how they look, what is kept of them, how long they live.

    sign-in -> issue -> (access token, renewal token)      request -> find -> who it is
                          renewal token -> renew -> a new pair, after identity and groups were checked again

token_format    how a token looks, and its digest       revocations    what a revocation ends
tokens          issue, find, renew, revoke              storable       what a store can keep
records         what a sign-in remembers meanwhile      moving         from one store to another
contents        what a store holds, counted             likeness       whether two stores hold the same
moving_objects  the same for objects
program_tokens  for programs: one token, no renewal     allowance      how many of these a user may have
application_tokens  in the cookies of web applications

An access token is short-lived and unscoped. The cookie of a browser opens the gateway's own pages and nothing else. A
session lasts as long as a person need not sign in again, and no token outlives it. A renewal token is good for one
renewal. If it is presented a second time, either the answer of the first time was lost or the token was stolen. Nobody
can tell, so the session ends.
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
