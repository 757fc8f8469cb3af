"""Load a policy without serving it: policy files, or the whole chain of a ``gateway.yaml``; and lint it.

Providers are built through the catalog, as for a gateway, so the ``policy`` commands decide as the gateway would.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.yaml import ConfigReader, Document, Node, read
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary_gateway import catalog
from ostiary_gateway import config as gateway_config
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED
from ostiary_gateway.authorization.who_can import SYSTEM, NameSource, PossibleSubjects
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.gateway_config import AuthorizationSettings, GatewayConfig
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.config.providers import Builder, close_all
from ostiary_gateway.config.upstream import UpstreamConfig
from ostiary_gateway.interfaces.authorization import (
    Finding,
    Grant,
    Level,
    LintsPolicy,
    ListsGrants,
    NamesSubjects,
    Subject,
)
from ostiary_gateway.proxy.following import followers_of

# Policy and group entries that match no user of this gateway:
#
#     subjects that a policy names, with positions  ->  can the configured providers produce them?  ->  findings
#
# A provider cannot detect them. Only the whole configuration shows that no user has this name, for example when a
# provider was given a prefix after the policy was written.

RULE = "matches-nobody"


def find_unmatched(config: GatewayConfig) -> tuple[Finding, ...]:
    """Return a finding for every entry of the policy files and group lists of *config* that matches no user."""
    possible = PossibleSubjects.from_config(config)
    findings = [*unmatched_members(possible)]
    for link in config.authorization.chain:
        naming = ability(link.instance, NamesSubjects)
        if naming is not None:
            findings += unmatched_subjects(naming.named_subjects(), possible)
    return tuple(findings)


def unmatched_subjects(named: Iterable[tuple[Subject, Place]], possible: PossibleSubjects) -> Iterator[Finding]:
    if possible.anybody:
        return
    for subject, place in named:
        if why := _why_nobody(subject, possible):
            # A cluster's policy has many of them, and a user may still impersonate one.
            level = Level.INFO if subject.kind == "ServiceAccount" or _is_system(subject.name) else Level.WARNING
            problem = Problem(f'{subject.kind} "{subject.name}" matches nobody: {why}', place, _hint(subject, possible))
            yield Finding(level, RULE, problem)


def unmatched_members(possible: PossibleSubjects) -> Iterator[Finding]:
    for member in possible.members:
        if not possible.can_be_user(member.username):
            why = _why_nobody(Subject("User", member.username), possible)
            message = f'member "{member.username}" of group "{member.group}" matches nobody: {why}'
            hint = _hint(Subject("User", member.username), possible)
            yield Finding(Level.WARNING, RULE, Problem(message, member.place, hint))


def _why_nobody(subject: Subject, possible: PossibleSubjects) -> str:
    """Return why no user who signs in is *subject*, or an empty string if one can be."""
    name = subject.name
    if possible.can_be_service_account(subject):
        return ""
    if subject.kind == "ServiceAccount" or (_is_system(name) and name != AUTHENTICATED):
        return "nobody signs in as a system user; only users who may impersonate it can act as it"
    if subject.kind == "Group":
        fitting = [source for source in possible.groups if name.startswith(source.prefix)]
        return "" if possible.can_be_group(name) else _why("group", possible.groups, fitting)
    return "" if possible.can_be_user(name) else _why("identity", possible.users, possible.owners(name))


def _why(kind: str, sources: tuple[NameSource, ...], fitting: list[NameSource]) -> str:
    if not sources:
        return f"there is no {kind} provider"
    if fitting:
        return f"{_names_of(fitting)} {'does' if len(fitting) == 1 else 'do'} not know it"
    prefixes = ", ".join(f'"{source.prefix}"' for source in sources)
    return f"names of {_names_of(sources)} begin with {prefixes}"


def _names_of(sources: Iterable[NameSource]) -> str:
    return ", ".join(f'"{source.provider}"' for source in sources)


def _hint(subject: Subject, possible: PossibleSubjects) -> str | None:
    near = possible.near_group(subject.name) if subject.kind == "Group" else possible.near_user(subject.name)
    return f'did you mean "{near}"?' if near else None


def _is_system(name: str) -> bool:
    return name.startswith(SYSTEM)


AUTHORIZATION = "authorization"
# The type of files without a known extension: they are manifests.
DEFAULT_TYPE = "rbac"


@dataclass(frozen=True)
class OpenedPolicy:
    """A chain and its grants. `unlisted` names the providers that cannot list their grants.

    `listings` are the providers that can, each with the upstreams that its grants are for.
    """

    authorizer: Authorizer
    listings: tuple[tuple[ListsGrants, tuple[str, ...]], ...]
    unlisted: tuple[str, ...] = ()

    @cached_property
    def grants(self) -> tuple[Grant, ...]:
        """All grants, collected on first use: a large policy has millions, and few commands need them."""
        return tuple(
            grant if grant.upstream == upstream else replace(grant, upstream=upstream)
            for listing, upstreams in self.listings
            for upstream in upstreams
            for grant in listing.grants()
        )


@asynccontextmanager
async def open_policy(
    settings: AuthorizationSettings, upstreams: Sequence[UpstreamConfig] = (), *, upstream: str = ""
) -> AsyncIterator[OpenedPolicy]:
    """Open the policy of a configured chain, and close its providers on exit.

    With *upstream*, the grants are those for that upstream; otherwise each grant names its upstream. A policy that is
    stored in one of *upstreams* is fetched from there, once. Raises `ProviderError` if that fails.
    """
    if any(followers_of(settings.chain)):
        from ostiary_gateway.proxy.following import load_once

        await load_once(settings.chain, upstreams)
    authorizer = Authorizer.from_settings(settings)
    listings, unlisted = list[tuple[ListsGrants, tuple[str, ...]]](), list[str]()
    for provider in settings.chain:
        names = provider.upstreams
        if upstream and names is not None and upstream not in names:
            continue
        listing = ability(provider.instance, ListsGrants)
        if listing is None:
            unlisted.append(provider.name)
        else:
            listings.append((listing, ("",) if names is None or upstream else tuple(sorted(names))))
    try:
        yield OpenedPolicy(authorizer, tuple(listings), tuple(unlisted))
    finally:
        await close_all(provider.instance for provider in settings.chain)


def open_policy_at(
    path: str, plugin_type: str | None = None, *, upstream: str = ""
) -> AbstractAsyncContextManager[OpenedPolicy]:
    """Open the policy at *path*: that of a ``gateway.yaml``, or one provider with the policy files there."""
    if plugin_type is None and is_gateway(path):
        config = gateway_config.load(path)
        return open_policy(config.authorization, config.upstreams, upstream=upstream)
    return open_policy(_settings_of_files(path, plugin_type), upstream=upstream)


def _settings_of_files(path: str, plugin_type: str | None) -> AuthorizationSettings:
    if not os.path.exists(path):
        raise ConfigurationError("the policy does not exist", where=path, code="config-unreadable")
    return AuthorizationSettings((_provider_of([path], plugin_type),))


def _provider_of(paths: Sequence[str], plugin_type: str | None = None) -> Authorization:
    """Return the provider for the policy files at *paths*. Raises `ConfigurationError` if they contain errors."""
    type_name = plugin_type or type_of(paths)
    listed = Node([Node(os.path.abspath(path)) for path in paths])
    reading = ConfigReader(Document(Node({"type": Node(type_name), "paths": listed}), ", ".join(paths)))
    provider = Builder(Path.cwd(), SYSTEM_CLOCK).build(AUTHORIZATION, reading.root, name=type_name)
    reading.finish(f"the policy at {', '.join(paths)} cannot be used", strict=True)
    # A missing provider was reported as an error, and `finish` has raised.
    assert provider is not None
    return Authorization(provider.name, provider.type, provider.instance)


def lint(paths: Sequence[str], plugin_type: str | None = None) -> tuple[Finding, ...]:
    """Return the provider's findings for its policy at *paths*. Raises `ConfigurationError` if it cannot lint it."""
    type_name = plugin_type or type_of(paths)
    judge = ability(catalog.load(AUTHORIZATION, type_name), LintsPolicy)
    if judge is None:
        raise ConfigurationError(
            f'the authorization provider "{type_name}" has no lint rules',
            hint="ostiary-gateway serve --check reads the policy and reports its mistakes",
            code="config-invalid",
        )
    return tuple(judge.lint(paths))


def lint_subjects(
    paths: Sequence[str], possible: PossibleSubjects, plugin_type: str | None = None
) -> tuple[Finding, ...]:
    """Return a finding for each subject of the policy at *paths* that *possible* excludes.

    Returns none for a policy with errors, which `lint` reports.
    """
    try:
        naming = ability(_provider_of(paths, plugin_type).instance, NamesSubjects)
    except ConfigurationError:
        return ()
    subjects = () if naming is None else naming.named_subjects()
    return tuple(unmatched_subjects(subjects, possible))


def type_of(paths: Sequence[str]) -> str:
    """Return the type of a policy by its file extensions. Raises `ConfigurationError` if there are several types."""
    by_ending = catalog.policy_endings()
    types = {_type_of(path, by_ending) for path in paths}
    if len(types) == 1:
        return types.pop()
    raise ConfigurationError(
        "these files are policies of different types",
        cause=f"they look like {' and '.join(sorted(types))}",
        hint="check them separately, or set the type with --type",
        code="config-invalid",
    )


def _type_of(path: str, by_ending: Mapping[str, str]) -> str:
    if not os.path.isdir(path):
        return by_ending.get(os.path.splitext(path)[1], DEFAULT_TYPE)
    try:
        endings = {os.path.splitext(name)[1] for name in os.listdir(path) if not name.startswith(".")}
    except OSError:
        endings = set()
    types = [name for ending, name in by_ending.items() if ending in endings]
    return types[0] if len(types) == 1 and endings <= set(by_ending) else DEFAULT_TYPE


def is_gateway(path: str) -> bool:
    """Report whether *path* is the configuration of a gateway, and not a policy."""
    if os.path.isdir(path) or os.path.splitext(path)[1] in catalog.policy_endings():
        return False
    try:
        document = read(path).value
    except ConfigurationError:
        # Several documents, or none: loading it as a policy will report the error.
        return False
    if not isinstance(document, dict):
        return False
    return (document.get("apiVersion"), document.get("kind")) == (gateway_config.API_VERSION, gateway_config.KIND)
