"""The settings ``listen``, ``health`` and ``tls``: addresses, TLS and limits of the listeners."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary_gateway.config.kinds import Networks, Pins, listen_address
from ostiary_gateway.config.values import Address, Network
from ostiary_gateway.http1.listen_limits import ListenLimits, ListenTimeouts
from ostiary_gateway.settings.kinds import Duration, FilePath, Flag, Holds, Integer, KeyPlace, Names, PrivateKey
from ostiary_gateway.settings.outgoing import OutgoingTls, bad_authorities, bad_pair
from ostiary_gateway.settings.sections import OptionalSection, Section


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The settings ``tls`` of a listener."""

    certificate: Annotated[
        Path, FilePath("PEM, with the chain; a renewed one is shown to whoever connects next", holds=Holds.CERTIFICATES)
    ]
    key: Annotated[
        KeyPlace,
        PrivateKey("PEM, without a password; or the address of a key that is kept elsewhere, such as `pkcs11:...`"),
    ]
    client_ca: Annotated[
        Path | None,
        FilePath(
            "authorities (PEM) of the client certificates that are accepted",
            name="clientCA",
            holds=Holds.CERTIFICATES,
            unset="none",
        ),
    ] = None
    resumption: Annotated[
        bool,
        Flag(
            "whether clients may resume a TLS session, at any worker of this replica. Never with `clientCA`: nobody"
            " would check their certificates again"
        ),
    ] = True

    def check(self, fields: ConfigSection) -> None:
        if fields.is_right("certificate", "key"):
            _check_pair(self.certificate, self.key, fields)
        if self.client_ca is not None and (mistake := bad_authorities(self.client_ca)):
            fields.problem(mistake, "clientCA")


@dataclass(frozen=True, slots=True)
class ClientTls(OutgoingTls):
    """Like `OutgoingTls`, but for an upstream, whose certificate can be pinned. `pins`: SHA-256 in hex."""

    pins: Annotated[
        frozenset[str],
        Pins(
            "SHA-256 of the certificates that it may have: 64 hex digits, as `openssl x509 -fingerprint -sha256`"
            " prints them"
        ),
    ] = frozenset()
    resumption: Annotated[
        bool,
        Flag(
            "whether a new connection resumes a TLS session of this upstream, for at most an hour after its certificate"
            " was checked"
        ),
    ] = True


def _check_pair(certificate: Path, key: KeyPlace, fields: ConfigSection) -> None:
    if mistake := bad_pair(certificate, key):
        fields.problem(mistake, "certificate")


@dataclass(frozen=True, slots=True)
class GrpcListen:
    """Listener for external authorization over gRPC."""

    address: Annotated[
        Address,
        listen_address(
            "where an Envoy asks by gRPC, for `doors` of the kind `envoy-grpc` (needs `ostiary-gateway[grpc]`). With"
            " the certificate of `listen.tls`; without that, on the loopback only"
        ),
    ]


@dataclass(frozen=True, slots=True)
class Listen:
    """The settings ``listen``."""

    address: Annotated[
        Address,
        listen_address(
            "the host is an IP address (IPv6 in brackets) or `localhost`; port 0 is any free one",
        ),
    ] = field(default=Address("127.0.0.1", 8443))
    tls: Annotated[ServerTls | None, OptionalSection("the listener's certificate; left out: plain HTTP", ServerTls)] = (
        None
    )
    grpc: Annotated[
        GrpcListen | None,
        OptionalSection(
            "a second listener, for gRPC; left out: there is none",
            GrpcListen,
            reload=False,
        ),
    ] = None
    insecure: Annotated[bool, Flag("without `tls` only the loopback is listened on, unless this is `true`")] = False
    workers: Annotated[
        int,
        Integer(
            "processes; more than one need a store that says they can share it (`shared_between_processes`),"
            " so not `memory`",
            reload=False,
        ),
    ] = 1
    trusted_proxies: Annotated[
        tuple[Network, ...],
        Networks("addresses and networks whose `X-Forwarded-For` is believed; all addresses together are refused"),
    ] = ()
    drop_headers: Annotated[
        tuple[str, ...],
        Names(
            "headers that a client cannot send to an upstream, besides those that say who somebody is (`X-Remote-*`,"
            " `X-Forwarded-*`, `X-Authenticated-*`, `X-Authentik-*`, `Tailscale-User-*`, `X-Auth-User`, `X-User`,"
            " `X-Goog-Authenticated-*`, `Client-Cert`, `X-Client-Cn` and the like) or where a request comes from"
            " (`Cf-Connecting-Ip`, `Fastly-Client-IP`, `X-Cluster-Client-IP` and the like): names, or beginnings with a"
            " star, as in `X-Employee-*`",
            pattern=r"[A-Za-z0-9-]+\*?",
            mistake="an entry is not a header name of letters, digits and dashes",
            hint="write it as in X-Employee, or X-Employee-* for all that begin so",
        ),
    ] = ()
    limits: Annotated[ListenLimits, Section("what a client may send", ListenLimits)] = field(default=ListenLimits())
    timeouts: Annotated[ListenTimeouts, Section("how long a client may take", ListenTimeouts)] = field(
        default=ListenTimeouts()
    )
    shutdown_delay: Annotated[
        timedelta,
        Duration(
            "how long the gateway goes on as before after SIGTERM while `/readyz` already says no: set it to the time"
            " that the load balancer in front of it needs to notice",
            zero=True,
        ),
    ] = timedelta(0)
    drain: Annotated[
        timedelta, Duration("how long requests may go on after SIGTERM and `shutdownDelay`", zero=True)
    ] = timedelta(seconds=30)

    @property
    def longest_stop(self) -> timedelta:
        """The maximum time from SIGTERM until the last request has ended."""
        return self.shutdown_delay + self.drain

    def check(self, fields: ConfigSection) -> None:
        is_plain = self.tls is None and not self.address.is_loopback and not self.insecure
        if is_plain and fields.is_right("tls", "insecure"):
            hint = "set listen.tls, or listen.insecure: true if a proxy in front of it terminates TLS"
            fields.problem("tokens would cross the network in plain text", "address", hint)
        if self.grpc is not None:
            self._check_grpc(self.grpc.address, fields)

    def _check_grpc(self, address: Address, fields: ConfigSection) -> None:
        if self.tls is None and not address.is_loopback and fields.is_right("tls"):
            hint = "set listen.tls, or listen on the loopback"
            fields.problem("tokens, and the secrets of doors, would cross the network in plain text", "grpc", hint)
        if address == self.address and address.port != 0:
            fields.problem("it needs an address of its own: another protocol is spoken there", "grpc")
        if find_spec("h2") is None:
            fields.problem("the library h2 is missing", "grpc", "pip install 'ostiary-gateway[grpc]'")


@dataclass(frozen=True, slots=True)
class HealthSettings:
    address: Annotated[
        Address,
        listen_address("probes and metrics, never on the address of `listen`: no header makes a request a probe"),
    ] = field(default=Address("127.0.0.1", 8444))
