"""Kubernetes' service accounts: what their tokens say, as TokenRequest issues them. Pure.

    sub                          system:serviceaccount:shop:deployer
    kubernetes.io                {namespace, serviceaccount: {name, uid}, pod: {name, uid}, node: {name, uid}}

The names of Kubernetes are given only to service accounts of the cluster behind the gateway, to which the operator has
bound the issuer. To that cluster a service account of another one would be its own of the same name, so those have
names of their own: ``serviceaccount:shop:deployer``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ostiary.core.users.implied_groups import service_account, service_account_groups
from ostiary.errors import LoginRefused
from ostiary.plugins.workload.platforms import Extra, Platform, TokenClaims, Workload
from ostiary.plugins.workload.rules import SYSTEM, WorkloadNames

PRIVATE_CLAIMS = "kubernetes.io"
# As kube-apiserver names what a token is bound to. Its admission policies rely on these keys.
ITS_OWN, OTHERS = "authentication.kubernetes.io", "ostiary.dev"
BOUND_OBJECTS = ("node", "pod")


def kubernetes(*, bound: bool) -> Platform:
    return Platform(
        "kubernetes",
        issuer="https://kubernetes.default.svc.cluster.local",
        claims=frozenset(("iss", "sub", "aud", "jti", "namespace", "serviceaccount", "pod", "node")),
        needs_rules=False,
        read=_read_bound if bound else _read_other,
        extra=tuple(_extra_keys(bound=bound)),
    )


def _extra_keys(*, bound: bool) -> Iterator[str]:
    domain = ITS_OWN if bound else OTHERS
    return (f"{domain}/{kind}-{what}" for kind in BOUND_OBJECTS for what in ("name", "uid"))


def _read_bound(claims: Mapping[str, object]) -> Workload:
    return _read(claims, bound=True)


def _read_other(claims: Mapping[str, object]) -> Workload:
    return _read(claims, bound=False)


def _read(claims: Mapping[str, object], *, bound: bool) -> Workload:
    """Raises `LoginRefused` if the token is not a service account's."""
    private = claims.get(PRIVATE_CLAIMS)
    details = private if isinstance(private, dict) else {}
    account, subject = _object(details, "serviceaccount"), claims.get("sub")
    namespace, name = details.get("namespace"), account.get("name")
    if not isinstance(subject, str) or service_account(subject) != (namespace, name):
        cause = "its subject is not the service account of its private claims"
        raise LoginRefused("this token is not a service account's", cause=cause)
    assert isinstance(namespace, str)
    bound_to = {kind: _object(details, kind).get("name") for kind in BOUND_OBJECTS}
    texts = TokenClaims(claims, {"namespace": namespace, "serviceaccount": name, **bound_to})
    return Workload(texts, _names(subject, namespace, account, bound=bound), tuple(_bound_objects(details, bound)))


def _names(subject: str, namespace: str, account: Mapping[str, object], *, bound: bool) -> WorkloadNames:
    uid = account.get("uid")
    groups = service_account_groups(namespace)
    if bound:
        return WorkloadNames(subject, groups, uid if isinstance(uid, str) else "")
    return WorkloadNames(subject.removeprefix(SYSTEM), tuple(group.removeprefix(SYSTEM) for group in groups))


def _bound_objects(details: Mapping[str, object], bound: bool) -> Extra:
    domain = ITS_OWN if bound else OTHERS
    return tuple(
        (f"{domain}/{kind}-{what}", (value,))
        for kind in BOUND_OBJECTS
        for what in ("name", "uid")
        if isinstance(value := _object(details, kind).get(what), str) and value
    )


def _object(details: Mapping[str, object], kind: str) -> Mapping[str, object]:
    value = details.get(kind)
    return value if isinstance(value, dict) else {}
