"""The settings of ``backend.yaml``, and the loader that builds `BackendConfig` from them.

    load, loads  ->  ConfigReader  ->  BackendFile (as declared)  ->  providers  ->  BackendConfig

The sections ``authorization`` and ``audit`` are those of ``gateway.yaml``, with the same providers. Every configuration
error is reported with its position before the API serves a request.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import urlsplit

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigReader, ConfigSection, Document, Node, parse, read
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config import sections
from ostiary_gateway.config.audit import Audit
from ostiary_gateway.config.gateway_config import AuthorizationSettings, DecisionSettings
from ostiary_gateway.config.gateway_file import API_VERSION, AuthorizationFile
from ostiary_gateway.config.kinds import NAME, PublicOrigin, TypeOrEntry
from ostiary_gateway.config.provider import Authorization, Provider
from ostiary_gateway.config.providers import Builder
from ostiary_gateway.interfaces.attributes import AttributesMapper, ReadsCapabilities
from ostiary_gateway.interfaces.audit import AuditProvider
from ostiary_gateway.interfaces.upstream_capabilities import FollowsUpstream
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Constant, Duration, FilePath, Flag, Holds, Names, Text
from ostiary_gateway.settings.outgoing import OutgoingTls, parse_origin
from ostiary_gateway.settings.sections import OptionalSection, Section

KIND = "Backend"
# The default mapper: methods and paths, or resources by templates.
DEFAULT_ATTRIBUTES = "http"
LEAST_MAX_STALE = timedelta(seconds=2)
# A path, or a path prefix followed by a star, as in RBAC.
_OPEN_PATH = r"/[A-Za-z0-9._~/-]*\*?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedGateway:
    """The gateway whose tokens are accepted, and how to connect to it."""

    server: Annotated[str, Text("`https://host:port` of the gateway; plain http on the loopback only")]
    token_file: Annotated[
        Path | None,
        FilePath(
            "the token of `webhooks.callers.tokenFile` of the gateway; read again at every question",
            holds=Holds.SECRET,
            unset="none",
        ),
    ] = None
    tls: Annotated[OutgoingTls, Section("how it is trusted, and what is presented to it", OutgoingTls)]
    timeout: Annotated[timedelta, Duration("for one answer of the gateway")] = timedelta(seconds=5)
    max_stale: Annotated[
        timedelta,
        Duration(
            "when the gateway cannot confirm for this long that no revocation is missing here, no remembered token"
            " counts: it is asked again, and if it cannot be asked the answer is 503. Two seconds at least"
        ),
    ] = timedelta(seconds=10)

    @property
    def url(self) -> str:
        return self.server.rstrip("/")

    def check(self, fields: ConfigSection) -> None:
        if fields.is_right("server"):
            self._check_server(fields)
        if self.max_stale < LEAST_MAX_STALE and fields.is_right("maxStale"):
            fields.problem("it must be at least two seconds", "maxStale", "the gateway needs time to answer")
        if self.token_file is None and self.tls.certificate is None and fields.is_right("tokenFile", "tls"):
            hint = "set tokenFile, or tls.certificate and tls.key, as webhooks.callers of the gateway says"
            fields.problem("the gateway would not know who asks", "tokenFile", hint)

    def _check_server(self, fields: ConfigSection) -> None:
        try:
            url = parse_origin(self.server)
        except ValueError as mistake:
            fields.problem(str(mistake), "server", "write it as in https://gateway.example.com")
            return
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("tokens would cross the network in plain text", "server", "begin it with https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedIssuer:
    """The issuer of the gateway. Its JWTs are verified locally, without a call to the gateway."""

    issuer: Annotated[str, Text("the claim `iss`; its keys are found there", unset="`gateway.server`")] = ""
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of the issuer, where it is not at `gateway.server`",
            holds=Holds.CERTIFICATES,
            unset="the system's",
        ),
    ] = None

    def check(self, fields: ConfigSection) -> None:
        if not self.issuer:
            return
        try:
            url = urlsplit(self.issuer)
            usable = url.hostname and (url.scheme == "https" or (url.scheme == "http" and is_loopback(url.hostname)))
        except ValueError:
            usable = False
        if not usable or "?" in self.issuer or "#" in self.issuer:
            fields.problem("it is not a https URL without a query", "issuer", "plain http is for this machine only")


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings(TrustedIssuer):
    """JWTs of the gateway's issuer that users present."""

    audiences: Annotated[
        tuple[str, ...],
        Names("whom its JWTs must be for: names of this API, as in `issuer.audiences` of the gateway", least=1),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSettings(TrustedIssuer):
    """Requests that the gateway has allowed and redirected here, each with an action token."""

    origin: Annotated[
        str,
        PublicOrigin(
            "`https://host:port` where clients reach this API, as in `redirect.to` of the gateway's upstream; requests"
            " must have this `Host`"
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFile:
    """The declared settings of ``backend.yaml``."""

    api_version: Annotated[str, Constant("the version of this file's format", API_VERSION)]
    kind: Annotated[str, Constant("the kind of this file", KIND)]
    gateway: Annotated[TrustedGateway, Section("the gateway whose tokens are accepted", TrustedGateway)]
    upstream: Annotated[
        str,
        Text(
            "the name by which policies (`upstreams`) and the scopes of narrowed tokens know this API",
            pattern=NAME,
            mistake="it is not a name of lower-case letters, digits and dashes",
            unset="none",
        ),
    ] = ""
    jwt: Annotated[
        JwtSettings | None,
        OptionalSection("JWTs of the gateway's issuer; left out: none are accepted", JwtSettings),
    ] = None
    actions: Annotated[
        ActionSettings | None,
        OptionalSection("requests that the gateway redirects here; left out: none are accepted", ActionSettings),
    ] = None
    attributes: Annotated[
        str | ConfigSection,
        TypeOrEntry("how requests are understood (entry point `ostiary.attributes`)", "attributes"),
    ] = DEFAULT_ATTRIBUTES
    authorize_every_request: Annotated[
        bool,
        Flag(
            "whether every request is decided on before a view sees it. `false`: only who it is is checked, and each"
            " view must call `require`"
        ),
    ] = True
    open_paths: Annotated[
        tuple[str, ...],
        Names(
            "paths that need no token; one that ends with a star is the beginning of paths",
            pattern=_OPEN_PATH,
            mistake="it is not a plain path",
            hint="write it as in /healthz or /static/*",
        ),
    ] = ()
    authorization: Annotated[
        AuthorizationFile | None,
        OptionalSection("who decides; left out: the gateway is asked, by SubjectAccessReview", AuthorizationFile),
    ] = None
    audit: Annotated[Audit | None, OptionalSection("what is recorded, as by a gateway; left out: nothing", Audit)] = (
        None
    )


# Loading.

UNUSABLE = "this API cannot be protected with this configuration"
# The default authorizer: the gateway, by SubjectAccessReview.
ASK_THE_GATEWAY = "subject_access_review"
REVIEWS = "/webhooks/subject-access-review"


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """Settings and the providers built from them.

    No provider is connected yet. `instances` lists everything to close.
    """

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
    """Load the file at *path*. Raises `ConfigurationError` with all its errors."""
    return _config(read(path), Path(path).absolute().parent, clock)


def loads(
    source: str | bytes, *, directory: str | os.PathLike[str] = ".", clock: Clock = SYSTEM_CLOCK
) -> BackendConfig:
    """Load a configuration from *source*. Paths are relative to *directory*."""
    return _config(parse(source), Path(directory).absolute(), clock)


def _config(document: Document, directory: Path, clock: Clock) -> BackendConfig:
    reading = ConfigReader(document)
    root = reading.root
    file = read_settings(BackendFile, root, directory)
    if document.more:
        root.problem("the file has a second YAML document", None, "remove it: only the first document is read")
    if file.actions is not None and not file.authorize_every_request:
        # A view that calls `require` would deny every such request: an action token proves nothing else.
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
    # A missing mapper was reported as an error, and `finish` has raised.
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


def _mapper(file: BackendFile, builder: Builder, reading: ConfigReader) -> Provider[AttributesMapper] | None:
    name = file.upstream or "backend"
    if isinstance(file.attributes, str):
        return builder.build_without_settings("attributes", file.attributes, reading.root, "attributes", name=name)
    return builder.build("attributes", file.attributes, name=name)


def _authorization(file: BackendFile, builder: Builder, reading: ConfigReader) -> AuthorizationSettings:
    if file.authorization is not None:
        settings = sections.authorization(file.authorization, builder, {})
        _check_upstreams(file, settings, reading)
        return settings
    review = ConfigReader(Document(Node({key: Node(value) for key, value in _review_settings(file.gateway).items()})))
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
    """Return the settings of the review provider: the same connection as for introspection."""
    tls = gateway.tls
    files = {"tokenFile": gateway.token_file, "ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    return {
        "type": ASK_THE_GATEWAY,
        "server": gateway.url + REVIEWS,
        **{key: str(path) for key, path in files.items() if path is not None},
        **({"serverName": tls.server_name} if tls.server_name else {}),
    }


def _check_upstreams(file: BackendFile, settings: AuthorizationSettings, reading: ConfigReader) -> None:
    """Report policies that can never apply: those for other upstreams, and those of a cluster."""
    for link in settings.chain:
        if link.upstreams is not None and file.upstream not in link.upstreams:
            hint = f"there is: {file.upstream}" if file.upstream else "say what this API is called: upstream: NAME"
            reading.root.problem(f'the policy of "{link.name}" is for other upstreams only', "authorization", hint)
        if ability(link.instance, FollowsUpstream) is not None:
            message = f'the policy of "{link.name}" is that of a cluster, which only a gateway follows'
            hint = "leave out authorization: the gateway is then asked"
            reading.root.problem(message, "authorization", hint)
