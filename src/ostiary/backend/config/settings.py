"""The settings of ``backend.yaml``: the gateway that issues the tokens, what requests ask for, who decides.

Read by `backend.config.loading`; the reference is made from it. The sections ``authorization`` and ``audit`` are those
of ``gateway.yaml``, with the same providers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from ostiary.core.config import Fields
from ostiary.core.net.loopback import is_loopback
from ostiary.core.settings.kinds import Constant, Duration, FilePath, Flag, Holds, Names, Text
from ostiary.core.settings.outgoing import OutgoingTls, parse_origin
from ostiary.core.settings.sections import OptionalSection, Section
from ostiary.gateway.config.settings.audit import Audit
from ostiary.gateway.config.settings.gateway_file import API_VERSION, AuthorizationFile
from ostiary.gateway.config.settings.kinds import NAME, PublicOrigin, TypeOrEntry

KIND = "Backend"
# The mapper of an API that does not name any: methods and paths, or resources by templates.
DEFAULT_ATTRIBUTES = "http"
LEAST_MAX_STALE = timedelta(seconds=2)
# A path, or the beginning of paths before a final star, as in RBAC.
_OPEN_PATH = r"/[A-Za-z0-9._~/-]*\*?"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedGateway:
    """The gateway whose tokens are accepted, and how it is asked."""

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

    def check(self, fields: Fields) -> None:
        if fields.is_right("server"):
            self._check_server(fields)
        if self.max_stale < LEAST_MAX_STALE and fields.is_right("maxStale"):
            fields.problem("it must be at least two seconds", "maxStale", "the gateway needs time to answer")
        if self.token_file is None and self.tls.certificate is None and fields.is_right("tokenFile", "tls"):
            hint = "set tokenFile, or tls.certificate and tls.key, as webhooks.callers of the gateway says"
            fields.problem("the gateway would not know who asks", "tokenFile", hint)

    def _check_server(self, fields: Fields) -> None:
        try:
            url = parse_origin(self.server)
        except ValueError as mistake:
            fields.problem(str(mistake), "server", "write it as in https://gateway.example.com")
            return
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("tokens would cross the network in plain text", "server", "begin it with https://")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedIssuer:
    """The issuer of the gateway, whose JWTs are verified here and not asked about."""

    issuer: Annotated[str, Text("the claim `iss`; its keys are found there", unset="`gateway.server`")] = ""
    ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of the issuer, where it is not at `gateway.server`",
            holds=Holds.CERTIFICATES,
            unset="the system's",
        ),
    ] = None

    def check(self, fields: Fields) -> None:
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
    """Requests that the gateway has allowed and redirected here, each with its proof."""

    origin: Annotated[
        str,
        PublicOrigin(
            "`https://host:port` where clients reach this API, as in `redirect.to` of the gateway's upstream; requests"
            " must have this `Host`"
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFile:
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
        str | Fields,
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
