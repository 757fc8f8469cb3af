"""``kubectl --as``: which user the ``Impersonate-*`` headers name, and what must be allowed for it. Pure.

Called by the engine. The headers are never forwarded. As kube-apiserver does, the engine asks the policy whether the
sender may impersonate each part of the identity (user, groups, uid, extra), and only then forwards the request in the
other's name, with headers of our own.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.http1.headers import BadHeader, Headers

AUTHENTICATION = "authentication.k8s.io"
SERVICE_ACCOUNT = "system:serviceaccount:"
# More would only serve to make us ask many questions.
MOST_VALUES = 64


def requested_user(headers: Headers) -> UserInfo:
    """Whom the headers name; raises `BadHeader` if they contradict each other. Names are in lower case."""
    if len(headers) > MOST_VALUES:
        raise BadHeader("too many Impersonate headers")
    users, uids, groups = [], [], []
    extra: dict[str, list[str]] = {}
    for header, raw in headers:
        value = _text(raw)
        # However it is spelled, it asks to be somebody else. Only the key of an extra is a name of its own.
        name = header.replace(b"_", b"-")
        if name == b"impersonate-user":
            users.append(value)
        elif name == b"impersonate-uid":
            uids.append(value)
        elif name == b"impersonate-group":
            groups.append(value)
        elif name.startswith(b"impersonate-extra-"):
            extra.setdefault(_key(header[18:]), []).append(value)
        else:
            raise BadHeader("an unknown Impersonate header")
    if len(users) != 1 or not users[0]:
        raise BadHeader("impersonation needs exactly one Impersonate-User")
    if not all(groups) or "" in extra:
        raise BadHeader("an Impersonate header says nothing")
    if len(uids) > 1:
        raise BadHeader("more than one Impersonate-Uid")
    return UserInfo(
        users[0],
        uids[0] if uids else "",
        tuple(groups),
        tuple(sorted((key, tuple(values)) for key, values in extra.items())),
    )


def required_permissions(user: UserInfo, *, upstream: str = "") -> list[RequestInfo]:
    """What somebody must be allowed to do in order to be taken for *user* at *upstream*: every part of it by itself."""
    return [replace(permission, upstream=upstream) for permission in _permissions(user)]


def _permissions(user: UserInfo) -> list[RequestInfo]:
    permissions = [_permission_for_user(user.username)]
    permissions.extend(_permission("groups", name=group) for group in user.groups)
    if user.uid:
        permissions.append(_permission("uids", name=user.uid, api_group=AUTHENTICATION))
    for key, values in user.extra:
        permissions.extend(
            _permission("userextras", name=value, subresource=key, api_group=AUTHENTICATION) for value in values
        )
    return permissions


def _permission_for_user(username: str) -> RequestInfo:
    if username.startswith(SERVICE_ACCOUNT):
        namespace, _, name = username.removeprefix(SERVICE_ACCOUNT).partition(":")
        if namespace and name and ":" not in name:
            return _permission("serviceaccounts", name=name, namespace=namespace)
    return _permission("users", name=username)


def _permission(
    resource: str, *, name: str, namespace: str = "", subresource: str = "", api_group: str = ""
) -> RequestInfo:
    return RequestInfo(
        verb="impersonate",
        method="",
        path="",
        is_resource=True,
        api_group=api_group,
        api_version="v1",
        namespace=namespace,
        resource=resource,
        subresource=subresource,
        name=name,
    )


def _key(escaped: bytes) -> str:
    try:
        return unquote(escaped.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise BadHeader("an Impersonate-Extra header has a name that is not text") from None


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise BadHeader("an Impersonate header is not text") from None
