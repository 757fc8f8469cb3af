"""Reads ``backend.yaml``: every mistake is reported with its place, before the API serves anything.

    load, loads  ->  Reading  ->  BackendFile (as declared)  ->  providers  ->  BackendConfig

Called by the gatekeeper. Providers are built through the catalog, as for a gateway. They open nothing yet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any, cast

from ostiary.backend.config.settings import ActionSettings, BackendFile, JwtSettings, TrustedGateway
from ostiary.core.abilities import ability
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Document, Node, Reading, parse, read
from ostiary.core.settings.declare import read_settings
from ostiary.gateway.config import sections
from ostiary.gateway.config.providers import Builder
from ostiary.gateway.config.settings import Authorization, AuthorizationSettings, DecisionSettings, Provider
from ostiary.gateway.config.settings.audit import Audit
from ostiary.interfaces.attributes import AttributesMapper, ReadsCapabilities
from ostiary.interfaces.audit import AuditProvider
from ostiary.interfaces.upstream_abilities.following import FollowsUpstream

UNUSABLE = "this API cannot be protected with this configuration"
# Who decides where nothing is configured: the gateway itself, by the review that Kubernetes asks webhooks with.
ASK_THE_GATEWAY = "subject_access_review"
REVIEWS = "/webhooks/subject-access-review"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Ready built, and nothing is open yet. `instances` is everything that must be closed."""

    gateway: TrustedGateway
    upstream: str
    jwt: JwtSettings | None
    mapper: AttributesMapper
    authorization: AuthorizationSettings
    authorize_every_request: bool = True
    open_paths: tuple[str, ...] = ()
    actions: ActionSettings | None = None
    audit: Audit | None = None
    audit_sinks: tuple[Provider[AuditProvider], ...] = ()
    instances: tuple[object, ...] = field(default=(), repr=False)


def load(path: str | os.PathLike[str], *, clock: Clock = SYSTEM_CLOCK) -> BackendConfig:
    """The configuration in the file at *path*; raises `ConfigurationError` with all its mistakes."""
    return _config(read(path), Path(path).absolute().parent, clock)


def loads(
    source: str | bytes, *, directory: str | os.PathLike[str] = ".", clock: Clock = SYSTEM_CLOCK
) -> BackendConfig:
    """A configuration that is not a file; relative paths are meant from *directory*."""
    return _config(parse(source), Path(directory).absolute(), clock)


def _config(document: Document, directory: Path, clock: Clock) -> BackendConfig:
    reading = Reading(document)
    root = reading.root
    file = read_settings(BackendFile, root, directory)
    if document.more:
        root.problem("the file has a second YAML document", None, "remove it: only the first document is read")
    if file.actions is not None and not file.authorize_every_request:
        # A view that calls `require` refuses every such request: the proof is for nothing else.
        root.problem("views that decide for themselves cannot accept what the gateway allowed", "actions", "remove it")
    instances: list[object] = []
    builder = Builder(directory, clock, instances)
    mapper = _mapper(file, builder, reading)
    authorization = _authorization(file, builder, reading)
    sinks = () if file.audit is None else sections.audit(file.audit, builder, root)
    reader = None if mapper is None else ability(mapper.instance, ReadsCapabilities)
    if reader is not None and reader.reads_bodies:
        root.problem("capabilities of objects are read by a gateway, and not here", "attributes", "remove capabilities")
    reading.finish(UNUSABLE, strict=True)
    # Without a mapper there was a problem, and `finish` has raised.
    assert mapper is not None
    return BackendConfig(
        gateway=file.gateway,
        upstream=file.upstream,
        jwt=file.jwt,
        mapper=mapper.instance,
        authorization=authorization,
        authorize_every_request=file.authorize_every_request,
        open_paths=file.open_paths,
        actions=file.actions,
        audit=file.audit,
        audit_sinks=sinks,
        instances=tuple(instances),
    )


def _mapper(file: BackendFile, builder: Builder, reading: Reading) -> Provider[AttributesMapper] | None:
    name = file.upstream or "backend"
    if isinstance(file.attributes, str):
        return builder.build_without_settings("attributes", file.attributes, reading.root, "attributes", name=name)
    return builder.build("attributes", file.attributes, name=name)


def _authorization(file: BackendFile, builder: Builder, reading: Reading) -> AuthorizationSettings:
    if file.authorization is not None:
        settings = sections.authorization(file.authorization, builder, {})
        _check_upstreams(file, settings, reading)
        return settings
    review = Reading(Document(Node({key: Node(value) for key, value in _review_settings(file.gateway).items()})))
    provider = builder.build("authorization", review.root, name="gateway")
    if reading.root.is_right("gateway"):
        for problem in review.problems:
            reading.root.problem(
                f"the gateway cannot be asked for decisions: {problem.message}", "gateway", problem.hint
            )
    decisions = {each.name: each.default for each in dataclass_fields(DecisionSettings)}
    chain = () if provider is None else (Authorization(provider.name, provider.type, provider.instance),)
    return AuthorizationSettings(chain, **cast("Any", decisions))


def _review_settings(gateway: TrustedGateway) -> dict[str, str]:
    """How the gateway is asked for decisions: as it is asked about tokens."""
    tls = gateway.tls
    files = {"tokenFile": gateway.token_file, "ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    return {
        "type": ASK_THE_GATEWAY,
        "server": gateway.url + REVIEWS,
        **{key: str(path) for key, path in files.items() if path is not None},
        **({"serverName": tls.server_name} if tls.server_name else {}),
    }


def _check_upstreams(file: BackendFile, settings: AuthorizationSettings, reading: Reading) -> None:
    """A policy that is for other APIs only would never be asked here."""
    for link in settings.chain:
        if link.upstreams is not None and file.upstream not in link.upstreams:
            hint = f"there is: {file.upstream}" if file.upstream else "say what this API is called: upstream: NAME"
            reading.root.problem(f'the policy of "{link.name}" is for other upstreams only', "authorization", hint)
        if ability(link.instance, FollowsUpstream) is not None:
            message = f'the policy of "{link.name}" is that of a cluster, which only a gateway follows'
            hint = "leave out authorization: the gateway is then asked"
            reading.root.problem(message, "authorization", hint)
