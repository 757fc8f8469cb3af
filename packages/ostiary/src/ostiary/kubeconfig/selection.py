"""Select a context of a kubeconfig, or the pod's own cluster, and validate it. All rules are kubectl's.

    select   a Kubeconfig and the caller's choices -> Selection, validated
    choose   `files.load`, then `select`; or the service account of the pod

Nothing is run and no credential file is read here. `client.connection` sets up TLS and credentials from a `Selection`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.kubeconfig.files import load
from ostiary.kubeconfig.model import (
    DEFAULT_NAMESPACE,
    NO_OVERRIDES,
    Cluster,
    Context,
    Impersonation,
    Kubeconfig,
    Overrides,
    Selection,
    User,
)
from ostiary.kubeconfig.server_address import is_secure_server
from ostiary.kubeconfig.service_account import SERVICE_ACCOUNT, in_cluster
from ostiary.kubeconfig.validation import cluster_problems, unused_fields, user_problems
from ostiary.model import Place, Problem

# Overrides: values of the caller that replace the kubeconfig's, like kubectl's flags.

Part = TypeVar("Part", Cluster, User, Impersonation)


def apply_overrides(selection: Selection, overrides: Overrides) -> Selection:
    """Return *selection* with the caller's values, like kubectl's flags of the same names."""
    return replace(
        selection,
        cluster=_override_cluster(selection.cluster, overrides),
        user=_override_user(selection.user, overrides),
        namespace=overrides.namespace or selection.namespace,
    )


def _override_cluster(cluster: Cluster, overrides: Overrides) -> Cluster:
    cluster = _with(cluster, overrides, "server", "proxy_url", "disable_compression", "insecure_skip_tls_verify")
    # The kubeconfig's TLS server name and authority belong to the kubeconfig's server and trust settings.
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
    """Return *part* with those of the named fields that *given* sets."""
    values = {name: getattr(given, name) for name in names}
    return replace(part, **{name: value for name, value in values.items() if value not in (None, "", ())})


log = logging.getLogger("ostiary.client")


def choose(
    source: str | os.PathLike[str] | Kubeconfig | None = None,
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    overrides: Overrides = NO_OVERRIDES,
    policy_problems: Sequence[Problem] = (),
    environ: Mapping[str, str] | None = None,
    home: Path | None = None,
    service_account: Path = SERVICE_ACCOUNT,
) -> Selection:
    """Return the cluster and user of this process: the kubeconfig's, or the pod's if nothing was selected.

    A kubeconfig that selects anything, valid or not, takes precedence over the pod's cluster. So does a *source*, which
    is a path or a loaded kubeconfig.
    """
    environ = os.environ if environ is None else environ
    config = source if isinstance(source, Kubeconfig) else load(source, environ=environ, home=home)
    is_chosen = source is not None or context or cluster or user or overrides.server
    pod = None if is_chosen or config.current_context else in_cluster(environ, service_account)
    if pod is not None:
        return _check(apply_overrides(pod, overrides), policy_problems)
    selection = select(
        config,
        context=context,
        cluster=cluster,
        user=user,
        overrides=overrides,
        policy_problems=policy_problems,
    )
    _warn_of_unused(config.users.get(selection.user.name, selection.user))
    _warn_of_unknown(config, selection)
    return selection


def _warn_of_unused(user: User) -> None:
    """Only for the kubeconfig's own user: values that the caller overrides are not its errors."""
    for name, reason in unused_fields(user):
        log.warning("user %r: %s in the kubeconfig is not used: %s", user.name, name, reason)


def _warn_of_unknown(config: Kubeconfig, selection: Selection) -> None:
    """Warn about what kubectl silently ignores: a misspelt field such as a token, or a missing user."""
    user = selection.user
    if user.name and user.name not in config.users and not (user.has_header or user.has_certificate):
        log.warning("user %r is not in the kubeconfig: requests go out without a credential", user.name)
    context = config.contexts.get(selection.context_name)
    entries = [part.place for part in (context, selection.cluster, user) if part is not None]
    for place in config.unknown_fields:
        if any(_is_in_entry(place, entry) for entry in entries):
            log.warning("the kubeconfig has an unknown field, which takes no effect: %s", printable(str(place)))


def _is_in_entry(place: Place, entry: Place) -> bool:
    """Whether *place* is in the same list entry as *entry*, or outside of all lists."""
    same = "[" not in place.path or place.path.partition("]")[0] == entry.path.partition("]")[0]
    return same and place.file == entry.file


def select(
    config: Kubeconfig,
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    overrides: Overrides = NO_OVERRIDES,
    policy_problems: Sequence[Problem] = (),
) -> Selection:
    """Select the named context, or the current one, replace its parts as requested, and validate it.

    *policy_problems* are the errors of the application's own plugin policy; they count if the user has an exec plugin.
    Raises `ConfigurationError` with all errors of the selection.
    """
    name = context or config.current_context
    entry = config.contexts.get(name, Context(name))
    cluster_name, user_name = cluster or entry.cluster, user or entry.user
    problems = [
        *_context_problems(config, context, needed=not (cluster or overrides.server)),
        *_asked_problems(config, "user", user, config.users),
        *_asked_problems(config, "cluster", cluster, config.clusters),
    ]
    if not problems and not overrides.server and cluster_name not in config.clusters:
        problems.append(_cluster_problem(config, entry))
    if problems:
        raise ConfigurationError("no cluster is configured", problems=problems, code="config-not-found")
    selection = Selection(
        context_name=name,
        cluster=config.clusters.get(cluster_name, Cluster(cluster_name, place=entry.place)),
        # A context may name a missing user: like kubectl, continue without credentials.
        user=config.users.get(user_name, User(user_name, place=entry.place)),
        namespace=entry.namespace or DEFAULT_NAMESPACE,
    )
    return _check(apply_overrides(selection, overrides), policy_problems)


def _check(selection: Selection, policy_problems: Sequence[Problem]) -> Selection:
    # Without TLS no credential is sent, so its files are not required.
    is_secure = is_secure_server(selection.cluster.server)
    problems = [*user_problems(selection.user, is_secure=is_secure), *cluster_problems(selection.cluster)]
    if selection.user.exec is not None:
        problems += policy_problems
    if problems:
        summary = f"context {selection.context_name!r} cannot be used"
        raise ConfigurationError(summary, problems=problems, code="config-invalid")
    return selection


# --- requested but missing ---


def _context_problems(config: Kubeconfig, asked: str | None, *, needed: bool) -> list[Problem]:
    name = asked or config.current_context
    if name:
        place = _sources(config) if asked else config.current_context_place
        return [] if name in config.contexts else [_not_there("context", name, config.contexts, place)]
    if not needed:
        return []
    if config.contexts:
        message = f"no context is selected and current-context is not set; known contexts: {_names(config.contexts)}"
        return [Problem(message, _sources(config), "choose a context")]
    return [Problem("there is no configuration", _sources(config), "name a kubeconfig, or set KUBECONFIG")]


def _asked_problems(config: Kubeconfig, kind: str, asked: str | None, there: Iterable[str]) -> list[Problem]:
    return [_not_there(kind, asked, there, _sources(config))] if asked and asked not in there else []


def _cluster_problem(config: Kubeconfig, context: Context) -> Problem:
    place = Place(context.place.file, f"{context.place.path}.cluster", context.place.line)
    if not context.cluster:
        return Problem(f"context {context.name!r} names no cluster", place)
    return _not_there("cluster", context.cluster, config.clusters, place)


def _not_there(kind: str, name: str, there: Iterable[str], place: Place) -> Problem:
    return Problem(f"unknown {kind} {name!r}; known: {_names(there)}", place)


def _names(names: Iterable[str]) -> str:
    return printable(", ".join(sorted(names))) or "none"


def _sources(config: Kubeconfig) -> Place:
    return Place(", ".join((*config.files, *config.missing_files)) or None)
