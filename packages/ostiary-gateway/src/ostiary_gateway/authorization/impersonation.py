"""``kubectl --as``: the user named by ``Impersonate-*`` headers, and the required permissions.

The headers are never forwarded. Like kube-apiserver, the engine requires permission to impersonate each part of the
identity (user, groups, uid, extra) and then forwards the request on behalf of that user, with headers of its own.
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.http1.headers import BadHeader, Headers

AUTHENTICATION = "authentication.k8s.io"
SERVICE_ACCOUNT = "system:serviceaccount:"
# More values would only cause many queries.
MOST_VALUES = 64


def requested_user(headers: Headers) -> UserInfo:
    """Return the user that the headers name; raises `BadHeader` if they are contradictory.

    Header names are lower-case.
    """
    if len(headers) > MOST_VALUES:
        raise BadHeader("too many Impersonate headers")
    users, uids, groups = [], [], []
    extra: dict[str, list[str]] = {}
    for header, raw in headers:
        value = _text(raw)
        # Any spelling is impersonation. Only the key of an extra may contain an underscore.
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
    """Return the permissions for impersonating *user* at *upstream*: one for each part of the identity."""
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
