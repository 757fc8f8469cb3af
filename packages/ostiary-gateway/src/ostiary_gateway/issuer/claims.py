"""What a JWT says of a session. Pure; called by the issuer. The claims are listed in docs/reference/issuer.md.

`sequence` and `auth_time` let a verifier judge a revocation as we do: one ends what began before it.
"""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.wire.action_token import AllowedAction, url_digest


def session_digest(session_id: str) -> str:
    """What a JWT calls its session. The id itself is for operators: whoever reads a JWT need not know it."""
    return sha256(b"ostiary session\0" + session_id.encode()).hexdigest()


def assertion_of(
    session: Session, user: UserInfo, *, issuer: str, audience: str, now: datetime, expires_at: datetime
) -> dict[str, object]:
    """What an upstream is told about the user of a request. It has no id: nothing is kept of it, and it ends soon."""
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
    """Proof for a backend that one request was allowed. Nothing is kept of it either; `cid` is the token it came by."""
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
        # One without a number is older than every revocation.
        "sequence": session.sequence or 0,
        "username": user.username,
        "uid": user.uid,
        "groups": list(user.groups),
    }
