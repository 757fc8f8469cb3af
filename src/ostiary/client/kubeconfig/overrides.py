"""Puts what the caller sets in place of a kubeconfig's values, as kubectl does with its flags.

Called by `selection` with the chosen cluster and user.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from ostiary.client.kubeconfig.model import Cluster, Impersonation, Overrides, Selection, User

Part = TypeVar("Part", Cluster, User, Impersonation)


def apply_overrides(selection: Selection, overrides: Overrides) -> Selection:
    """*selection* with what the caller sets, as kubectl's flags of the same names would."""
    return replace(
        selection,
        cluster=_override_cluster(selection.cluster, overrides),
        user=_override_user(selection.user, overrides),
        namespace=overrides.namespace or selection.namespace,
    )


def _override_cluster(cluster: Cluster, overrides: Overrides) -> Cluster:
    cluster = _with(cluster, overrides, "server", "proxy_url", "disable_compression", "insecure_skip_tls_verify")
    # The kubeconfig's name and authority belong to the kubeconfig's server and way of trust.
    if overrides.server or overrides.tls_server_name:
        cluster = replace(cluster, tls_server_name=overrides.tls_server_name or "")
    authority, data = overrides.certificate_authority, overrides.certificate_authority_data
    if authority or data or overrides.insecure_skip_tls_verify:
        cluster = replace(
            cluster,
            insecure_skip_tls_verify=bool(overrides.insecure_skip_tls_verify),
            certificate_authority=authority,
            certificate_authority_data=data,
        )
    return cluster


def _override_user(user: User, overrides: Overrides) -> User:
    user = _with(user, overrides, "username", "password")
    for pair in (
        ("client_certificate", "client_certificate_data"),
        ("client_key", "client_key_data", "device_key"),
        ("token", "token_file"),
    ):
        if any(getattr(overrides, name) for name in pair):
            user = replace(user, **{name: getattr(overrides, name) for name in pair})
    if (impersonate := overrides.impersonate) is not None:
        user = replace(user, impersonate=_with(user.impersonate, impersonate, "user", "uid", "groups", "extra"))
    return user


def _with(part: Part, given: object, *names: str) -> Part:
    """*part* with those of the named fields that *given* sets."""
    values = {name: getattr(given, name) for name in names}
    return replace(part, **{name: value for name, value in values.items() if value not in (None, "", ())})
