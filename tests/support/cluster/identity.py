"""Whom the cluster takes a request to come from: as kube-apiserver behind an authenticating proxy.

In its order: ``X-Remote-*`` over a certificate of the proxy, a client certificate, a bearer token; then impersonation.
There is no anonymous user, so that a request whose credential was lost on the way is refused and not served.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256

from ostiary.model import UserInfo
from tests.support.cluster import websocket
from tests.support.cluster.http import Record, text
from tests.support.cluster.resources import Asked
from tests.support.cluster.status import Refused, bad_request, forbidden, unauthorized

AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ANONYMOUS = "system:anonymous"
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
WEBSOCKET_TOKEN = "base64url.bearer.authorization.k8s.io."
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")


@dataclass
class Trust:
    """Which credentials count. Tests change it while the cluster runs."""

    client_authority: x509.Certificate
    proxy_authority: x509.Certificate
    proxy_names: Collection[str] = ("front-proxy",)
    """Common names that may speak for others by ``X-Remote-*``; empty: any that `proxy_authority` signed."""
    tokens: dict[str, UserInfo] = field(default_factory=dict)
    impersonators: set[str] = field(default_factory=set)
    """Usernames that may impersonate anybody."""


def authenticate(record: Record, certificate: x509.Certificate | None, trust: Trust) -> UserInfo:
    """Whose credential *record* carries; raises `Refused` with 401."""
    user = (
        _by_proxy_headers(record, certificate, trust) or _by_certificate(certificate, trust) or _by_token(record, trust)
    )
    if user is None:
        raise unauthorized()
    return _with_fixed_groups(user)


def impersonate(record: Record, user: UserInfo, trust: Trust) -> UserInfo:
    """Who *user* asks to be taken for; raises `Refused` with 400 or 403."""
    target = UserInfo(
        record.value("Impersonate-User") or "",
        record.value("Impersonate-Uid") or "",
        tuple(record.values("Impersonate-Group")),
        _extra(record, "impersonate-extra-"),
    )
    if target == UserInfo(""):
        return user
    if not target.username:
        raise bad_request(f"requested {target!r} without impersonating a user")
    if user.username not in trust.impersonators:
        raise _may_not_impersonate(user, target.username)
    account = _SERVICE_ACCOUNT.fullmatch(target.username)
    if account and not target.groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[1]}")
        target = UserInfo(target.username, target.uid, groups, target.extra)
    return _with_fixed_groups(target)


def common_name(certificate: x509.Certificate | None) -> str | None:
    names = _names(certificate, x509.NameOID.COMMON_NAME) if certificate else []
    return names[0] if names else None


def _by_proxy_headers(record: Record, certificate: x509.Certificate | None, trust: Trust) -> UserInfo | None:
    if certificate is None or not _signed_by(trust.proxy_authority, certificate):
        return None
    if trust.proxy_names and common_name(certificate) not in trust.proxy_names:
        return None
    username = next((name for name in record.values("X-Remote-User") if name), None)
    if username is None:
        return None
    groups = tuple(record.values("X-Remote-Group"))
    return UserInfo(username, record.value("X-Remote-Uid") or "", groups, _extra(record, "x-remote-extra-"))


def _by_certificate(certificate: x509.Certificate | None, trust: Trust) -> UserInfo | None:
    username = common_name(certificate)
    if certificate is None or not username or not _signed_by(trust.client_authority, certificate):
        return None
    groups = tuple(_names(certificate, x509.NameOID.ORGANIZATION_NAME))
    digest = certificate.fingerprint(SHA256()).hex()
    return UserInfo(username, "", groups, ((CREDENTIAL_ID, (f"X509SHA256={digest}",)),))


def _by_token(record: Record, trust: Trust) -> UserInfo | None:
    token = _bearer(record) or _websocket_token(record)
    return None if token is None else trust.tokens.get(token)


def _bearer(record: Record) -> str | None:
    parts = (record.value("Authorization") or "").strip().split(" ", 2)
    return parts[1] if len(parts) >= 2 and parts[0].lower() == "bearer" and parts[1] else None


def _websocket_token(record: Record) -> str | None:
    """A browser cannot set headers on a WebSocket, so its token may come as a subprotocol beside the real one."""
    offered = record.tokens("Sec-WebSocket-Protocol") if websocket.is_upgrade(record) else []
    encoded = [each.removeprefix(WEBSOCKET_TOKEN) for each in offered if each.startswith(WEBSOCKET_TOKEN)]
    if len(encoded) != 1 or len(offered) < 2:
        return None
    try:
        return urlsafe_b64decode(encoded[0] + "=" * (-len(encoded[0]) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _extra(record: Record, prefix: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    found: dict[str, list[str]] = {}
    for name, value in record.headers:
        lowered = name.decode("latin-1").lower()
        if lowered.startswith(prefix):
            found.setdefault(unquote(lowered.removeprefix(prefix)), []).append(text(value))
    return tuple(sorted((key, tuple(values)) for key, values in found.items()))


def _with_fixed_groups(user: UserInfo) -> UserInfo:
    if AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    added = UNAUTHENTICATED if user.username == ANONYMOUS else AUTHENTICATED
    return UserInfo(user.username, user.uid, (*user.groups, added), user.extra)


def _may_not_impersonate(user: UserInfo, target: str) -> Refused:
    account = _SERVICE_ACCOUNT.fullmatch(target)
    if account:
        asked = Asked("impersonate", "", resource="serviceaccounts", namespace=account[1], name=account[2])
    else:
        asked = Asked("impersonate", "", resource="users", name=target)
    return forbidden(user.username, asked)


def _signed_by(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate, kind: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(kind)]
