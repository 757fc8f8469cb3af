"""Handles one request of the kubelet with the configured sources: the first that has a login.

A source without a login lets the search continue. A failure ends the request with an error, because an empty response
would be cached and the reason lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ostiary.core.go_text import is_text
from ostiary.core.text import printable
from ostiary.errors import AnswerInvalid, ConfigurationError
from ostiary.registry.docker_helper_protocol import HUB_SERVER
from ostiary.registry.image_matching import matches
from ostiary.registry.image_name import DOCKER_HUB
from ostiary.registry.kubelet.source_response import identity_token_error, no_credential
from ostiary.registry.kubelet.sources import AuthFile, Command, CredentialServer, Helper, LoginSource, TokenExchange
from ostiary.wire.credential_provider import BasicAuth, CacheKeyType, Request, Response

if TYPE_CHECKING:
    from ostiary.registry.credentials import ImageCredential, RegistryLogin

# The kubelet kills a provider after a minute, and only the provider: processes that we started must have ended before.
LIMIT_SECONDS = 45.0


def respond(request: Request, sources: Iterable[LoginSource]) -> Response:
    """Return the response of *sources* to *request*; raises `CredentialError` or `ConfigurationError`."""
    for source in sources:
        if not any(matches(pattern, request.image) for pattern in source.match_images):
            continue
        answer = _ask(source, _at_mirror(request, source.hosts_dir) if source.hosts_dir else request)
        if answer is not None:
            basic, lifetime = answer
            durations = [duration for duration in (source.cache_duration, lifetime) if duration is not None]
            key = _key(request.image, source.cache_key_type)
            return Response(source.cache_key_type, min(durations, default=None), {key: basic})
    # Not cached, so that newly granted access applies immediately.
    return Response(CacheKeyType.IMAGE, timedelta(0))


def respond_disabled() -> Response:
    """Return the response of a disabled provider: empty, and not cached, so that enabling it applies immediately."""
    return Response(CacheKeyType.IMAGE, timedelta(0))


def _at_mirror(request: Request, hosts_dir: str) -> Request:
    """Return *request* for the image's name at the host that containerd contacts first."""
    from ostiary.registry.mirrors.containerd import ContainerdHosts
    from ostiary.registry.mirrors.plan import NO_NAME

    plan = ContainerdHosts(hosts_dir).plan(request.image)
    endpoint = next((each for each in plan.asked if each.resolves), None)
    if endpoint is None or not endpoint.repository:
        raise ConfigurationError(
            no_credential(request.image),
            cause="no host is asked for it" if endpoint is None else f"{printable(endpoint.host)}: {NO_NAME}",
            where=hosts_dir,
            code="mirrors-invalid",
        )
    return replace(request, image=endpoint.repository)


def _ask(source: LoginSource, request: Request) -> tuple[BasicAuth, timedelta | None] | None:
    """Return a login, and its lifetime if that is known."""
    registry = request.image.partition("/")[0]
    origin = source.origin
    # Imported only if needed: the kubelet starts this program for every image that it pulls.
    if isinstance(origin, TokenExchange):
        from ostiary.registry.kubelet.http_sources import exchange_token

        return exchange_token(origin, request)
    if isinstance(origin, CredentialServer):
        from ostiary.registry.kubelet.http_sources import ask_server

        return ask_server(origin, request)
    if isinstance(origin, Command):
        from ostiary.registry.kubelet.command_source import run_command

        basic = run_command(origin, request.image, server=_server(registry), seconds=LIMIT_SECONDS)
        return None if basic is None else (basic, None)
    login = _docker_login(origin, request.image, server=_server(registry))
    if login is None:
        return None
    if login.identity_token:
        raise identity_token_error(request.image)
    if not (is_text(login.username) and is_text(login.password.reveal())):
        raise _not_text(request.image)
    return BasicAuth(login.username, login.password), None


def _docker_login(origin: Helper | AuthFile, image: str, *, server: str) -> RegistryLogin | ImageCredential | None:
    from ostiary.core.process import RunLimits
    from ostiary.registry.docker_store import DockerHelper, DockerStore

    limits = RunLimits(seconds=LIMIT_SECONDS)
    if isinstance(origin, Helper):
        return DockerHelper(origin.suffix, limits=limits).get(server)
    return DockerStore(origin.path, limits=limits).find(image)


def _server(registry: str) -> str:
    return HUB_SERVER if registry == DOCKER_HUB else registry


def _key(image: str, kept_for: CacheKeyType) -> str:
    registry, _, path = image.partition("/")
    # As a key, an image whose path starts like the registry API would not match itself.
    whole = kept_for is CacheKeyType.REGISTRY or path.startswith(("v1/", "v2/"))
    return registry if whole else image


def _not_text(image: str) -> AnswerInvalid:
    return AnswerInvalid(
        no_credential(image),
        cause="the username or the password is not UTF-8, and the kubelet's protocol is JSON, which is",
        hint="use a username and a password in UTF-8",
        code="docker-helper-answer-invalid",
    )
