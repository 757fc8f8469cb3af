"""Claims of the JWTs that the issuer signs, listed in docs/reference/issuer.md. Pure.

With `sequence` and `auth_time`, a verifier can apply revocations like the gateway: a revocation ends what began before
it.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.wire.action_token import AllowedAction, url_digest


def session_digest(session_id: str) -> str:
    """Return the ``sid`` of a session. The session id itself is for operators and not disclosed to readers of a JWT."""
    return sha256(b"ostiary session\0" + session_id.encode()).hexdigest()


def assertion_of(
    session: Session, user: UserInfo, *, issuer: str, audience: str, now: datetime, expires_at: datetime
) -> dict[str, object]:
    """Return the claims that identify the user of a request to an upstream.

    Without ``jti``, because the JWT is short-lived and not stored.
    """
    seconds = int(now.timestamp())
    return {
        "iss": issuer,
        "sub": user.username,
        "aud": [audience],
        "exp": int(expires_at.timestamp()),
        "nbf": seconds,
        "iat": seconds,
        "sid": session_digest(session.id),
        "username": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
    }


def action_of(
    session: Session, action: AllowedAction, *, issuer: str, audience: str, now: datetime, expires_at: datetime
) -> dict[str, object]:
    """Return the claims that prove to a backend that one request was allowed.

    The JWT is not stored. ``cid`` is the id of the token that the request was authenticated with.
    """
    user = action.user
    claims = {
        **claims_of(session, issuer=issuer, audience=audience, credential_id=action.id, now=now, expires_at=expires_at),
        "sub": user.username,
        "username": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
        "cid": action.credential_id,
        "method": action.method,
        "url": url_digest(action.url),
    }
    if user.extra:
        claims["extra"] = {key: list(values) for key, values in user.extra}
    return claims


def claims_of(
    session: Session, *, issuer: str, audience: str, credential_id: str, now: datetime, expires_at: datetime
) -> dict[str, object]:
    user = session.user
    seconds = int(now.timestamp())
    return {
        "iss": issuer,
        "sub": user.username,
        "aud": [audience],
        "exp": int(expires_at.timestamp()),
        "nbf": seconds,
        "iat": seconds,
        "jti": credential_id,
        "sid": session_digest(session.id),
        "auth_time": int(session.created_at.timestamp()),
        # A session without a number is older than every revocation.
        "sequence": session.sequence or 0,
        "username": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
    }
