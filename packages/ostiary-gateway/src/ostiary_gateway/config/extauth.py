"""Settings of external authorization: a proxy that forwards requests itself, and authorizes each at the gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.config.kinds import DOORS_PREFIX, EntryName, listen_address
from ostiary_gateway.config.values import Address
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import Duration, FilePath, Holds, Integer, Names, OneOf, Text, Texts
from ostiary_gateway.settings.sections import OptionalSection, Section

# Callers on behalf of users: clusters that call webhooks, and proxies that use external authorization.


@dataclass(frozen=True, slots=True)
class Callers:
    """Accepted callers: client certificates with these names, or the token in the file."""

    names: Annotated[
        tuple[str, ...],
        Names("common names of client certificates that may ask; needs `listen.tls.clientCA`"),
    ] = ()
    token_file: Annotated[
        Path | None, FilePath("a file with the token that callers present", holds=Holds.SECRET, unset="none")
    ] = None


# Characters that every proxy supports in a header name, and nginx in a variable name.
EXTRA_KEY = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


class ProxyKind(Enum):
    """Supported proxies. Each describes the original request in its own way: see `extauth.dialects`."""

    NGINX = "nginx"
    TRAEFIK = "traefik"
    CADDY = "caddy"
    ENVOY = "envoy"
    ENVOY_GRPC = "envoy-grpc"
    GATEWAY_API = "gateway-api"
    HAPROXY = "haproxy"

    @property
    def asks_by_grpc(self) -> bool:
        """Whether it calls `listen.grpc` instead of a path below ``/doors``."""
        return self is ProxyKind.ENVOY_GRPC

    @property
    def leads_browsers(self) -> bool:
        """Whether it supports web applications: browsers return from sign-in through it, over HTTP."""
        return self not in (ProxyKind.ENVOY_GRPC, ProxyKind.HAPROXY)

    @property
    def takes_lines(self) -> bool:
        """Whether it adds header lines from the response, which may include a JWT and cookies."""
        return self is not ProxyKind.HAPROXY


# Characters without a special meaning on HAProxy's runtime socket.
MAP_FILE = r"(/[A-Za-z0-9_.-]+)+"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Listener for HAProxy (SPOE)."""

    address: Annotated[
        Address,
        listen_address(
            "where the gateway listens for HAProxy's questions (SPOE), an address of its own. Beyond the loopback, and"
            " where `callers.names` are set, TLS is spoken with the certificate of `listen.tls`"
        ),
    ]


@dataclass(frozen=True, slots=True)
class CarriedDecisions:
    """Decisions that HAProxy caches."""

    socket: Annotated[
        Path,
        FilePath(
            "HAProxy's runtime socket (`stats socket`, with `level admin`), over which it is told decisions",
            holds=Holds.WRITTEN,
            checked=False,
        ),
    ]
    map: Annotated[
        str,
        Text(
            "an empty file, from which HAProxy reads its map of decisions when it starts",
            pattern=MAP_FILE,
            mistake="it is not the whole path of a file, of letters, digits, dots, dashes and underscores",
        ),
    ] = "/dev/null"
    lifetime: Annotated[
        timedelta,
        Duration("how long HAProxy uses a decision before it asks again, though nothing has changed"),
    ] = timedelta(seconds=60)
    entries: Annotated[
        int,
        Integer("how many decisions a worker puts into HAProxy's map; of one user at most a tenth of them"),
    ] = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSettings:
    """External authorization for one proxy, at ``/doors/<name>/<upstream>``."""

    name: Annotated[
        str,
        EntryName("small letters, digits and dashes; unique in its list. The proxy asks at `/doors/<name>/<upstream>`"),
    ]
    proxy: Annotated[
        ProxyKind,
        OneOf(
            "which proxy asks: nginx `auth_request`, Traefik `ForwardAuth`, Caddy `forward_auth`, Envoy `ext_authz`"
            " (HTTP, or gRPC at `listen.grpc`), Gateway API `ExternalAuth` (HTTP), HAProxy SPOE. The request is read as"
            " this proxy tells it, in no other way",
            ProxyKind,
        ),
    ]
    upstreams: Annotated[
        tuple[str, ...],
        Names(
            "the upstreams that the proxy carries requests to",
            unset="all",
            empty_list="a door to no upstream is never opened",
            empty_list_hint="leave it out if all are meant",
        ),
    ] = ()
    port: Annotated[
        int | None,
        Integer(
            "the port at which browsers find the web applications (`auth: browser`) of this proxy; the scheme is that"
            " of `externalURL`",
            unset="that of `externalURL`",
        ),
    ] = None
    callers: Annotated[
        Callers,
        Section(
            "how the proxy proves itself: by the token, in the header (or metadata) `X-Ostiary-Door`, or by a client"
            " certificate",
            Callers,
        ),
    ] = field(default=Callers())
    extra: Annotated[
        tuple[str, ...],
        Texts(
            "keys of the users' extra fields that the upstream is told, each in a header of its own",
            pattern=EXTRA_KEY,
            mistake="it is not a key of small letters, digits and dashes: others cannot pass every proxy",
            repeated="duplicate entry in the list",
            unset="none",
        ),
    ] = ()
    agent: Annotated[
        AgentSettings | None,
        OptionalSection("where HAProxy asks; needed for `proxy: haproxy`, and for no other", AgentSettings),
    ] = None
    decisions: Annotated[
        CarriedDecisions | None,
        OptionalSection(
            "let HAProxy use decisions again, until they are revoked; left out: it asks about each request",
            CarriedDecisions,
        ),
    ] = None
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)

    @property
    def path(self) -> str:
        return f"{DOORS_PREFIX}/{self.name}"

    def check(self, fields: ConfigSection) -> None:
        callers = self.callers
        if not callers.names and callers.token_file is None and fields.is_right("callers"):
            hint = "set callers.tokenFile, or callers.names with listen.tls.clientCA"
            fields.problem("without authentication, anybody could look up any permission", "callers", hint)
        if self.proxy is ProxyKind.HAPROXY:
            if self.agent is None and fields.is_right("agent"):
                hint = 'set it as in agent: {address: "127.0.0.1:9345"}'
                fields.problem("HAProxy asks at an address of its own", "agent", hint)
        else:
            for key in ("agent", "decisions"):
                if key in fields:
                    fields.problem("only HAProxy has it", key, f"leave it out for {self.proxy.value}")
