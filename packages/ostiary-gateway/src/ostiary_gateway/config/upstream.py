"""Settings of an upstream: where requests are sent, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary.model import Place
from ostiary_gateway.capabilities import has_trait
from ostiary_gateway.config.kinds import PLAIN_PATH, Hosts, PathsAndBelow, Prefix, PublicOrigin, PublicPaths
from ostiary_gateway.config.listen import ClientTls
from ostiary_gateway.config.provider import Provider
from ostiary_gateway.http1.headers import HeaderNames
from ostiary_gateway.interfaces.attributes import AttributesMapper, ReadsKubernetesPaths
from ostiary_gateway.settings.kinds import Duration, FilePath, Flag, Holds, Integer, OneOf, Ratio, Text
from ostiary_gateway.settings.sections import OptionalSection, Section

# A revocation must stay on the deny list until the last earlier proof has expired (`issuer.deny_list`).
SHORTEST_ACTION, LONGEST_ACTION = timedelta(seconds=5), timedelta(minutes=5)


class IdentityMode(Enum):
    """How the gateway passes the user to an upstream."""

    IMPERSONATION = "impersonation"
    REQUEST_HEADER = "requestHeader"
    ASSERTION = "assertion"
    NONE = "none"


class UpstreamAuth(Enum):
    """How clients of an upstream authenticate."""

    TOKEN = "token"  # noqa: S105
    BROWSER = "browser"


class Offered(Enum):
    """To which users a cluster is offered on the pages, and by ``ostiary kubeconfig --all``."""

    BY_POLICY = "byPolicy"
    EVERYBODY = "everybody"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class UpstreamTimeouts:
    connect: Annotated[timedelta, Duration("for a connection")] = timedelta(seconds=5)
    response: Annotated[timedelta, Duration("for the head of an answer, except of watches and streams")] = timedelta(
        seconds=60
    )
    idle: Annotated[timedelta, Duration("for an unused connection")] = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectSettings:
    """Downloads that bypass the gateway: it responds with a redirect that proves what it has allowed."""

    to: Annotated[
        str,
        PublicOrigin(
            "`https://host:port` where clients reach the backend itself; plain http on the loopback only. It is the"
            " `actions.origin` of its `backend.yaml`, and nothing else is ever redirected to"
        ),
    ]
    paths: Annotated[
        tuple[str, ...],
        PathsAndBelow(
            "what is redirected, as clients write it: `/report`; with a slash at the end also everything below, as in"
            " `/download/`. Only GET and HEAD without a body are; all else is forwarded",
            least=1,
        ),
    ]
    lifetime: Annotated[timedelta, Duration("how long the proof may be used; 5 minutes at most")] = timedelta(
        seconds=60
    )

    def check(self, fields: ConfigSection) -> None:
        if not SHORTEST_ACTION <= self.lifetime <= LONGEST_ACTION and fields.is_right("lifetime"):
            fields.problem("it must be from 5 seconds to 5 minutes", "lifetime")


# One request in a billion. A smaller share is most likely an error.
_LEAST_SHARE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowSettings:
    """Comparison of decisions with those of the cluster, by SubjectAccessReview."""

    share: Annotated[float, Ratio("how many of the requests: `0.01` is one in a hundred; at least one in a billion")]
    per_second: Annotated[
        int, Integer("at most so many reviews a second, in each worker; what would be more is counted as dropped")
    ] = 20

    def check(self, fields: ConfigSection) -> None:
        if self.share < _LEAST_SHARE and fields.is_right("share"):
            fields.problem("no request would be compared", "share", "leave shadow out, or set a larger share")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Settings of an upstream that are used as written. Empty `hosts`: any."""

    display_name: Annotated[
        str, Text("what people read where clusters are listed: `Production, Frankfurt`", unset="the name")
    ] = ""
    offered: Annotated[
        Offered,
        OneOf(
            "to whom a Kubernetes upstream is [offered](../how-to/all-my-clusters.md) on the page and by `ostiary"
            " kubeconfig --all`. `byPolicy`: to those who may do something there; `everybody`: to all who are signed"
            " in; `never`: to nobody. It gives no permission",
            Offered,
        ),
    ] = Offered.BY_POLICY
    hosts: Annotated[tuple[str, ...], Hosts("names without port, in any case", unset="any")] = ()
    prefix: Annotated[
        str,
        Prefix(
            "this path and everything below it; not below `/auth`, `/webhooks`, `/doors`, `/apis/ostiary.dev`, where"
            " the gateway answers itself"
        ),
    ] = "/"
    strip_prefix: Annotated[bool, Flag("the upstream gets the path without the prefix")] = False
    identity: Annotated[
        IdentityMode,
        OneOf(
            "how it learns who asks. `impersonation`: `Impersonate-*` headers, with a `tokenFile` or a client"
            " certificate of the gateway; `requestHeader`: the headers below, over https with a client certificate and"
            " with `tls.ca` or `tls.pins`; `assertion`: a JWT in `X-Ostiary-Assertion`, signed by `issuer`, with the"
            " name of the upstream as its audience; `none`: not at all",
            IdentityMode,
        ),
    ] = IdentityMode.NONE
    auth: Annotated[
        UpstreamAuth,
        OneOf(
            "how users show who they are. `token`: with a token of the gateway, as programs do; `browser`: the upstream"
            " is a web application. Browsers are led to the sign-in page and back, and then have a cookie for it;"
            " programs still present tokens. Needs `externalURL`",
            UpstreamAuth,
        ),
    ] = UpstreamAuth.TOKEN
    public: Annotated[
        tuple[str, ...],
        PublicPaths(
            "paths that need no sign-in, as in `/healthz`; with a slash at the end also everything below, as in"
            " `/static/`. Such requests are forwarded without a user, whoever sends them, and no policy is asked."
            " Not for Kubernetes",
            unset="none",
        ),
    ] = ()
    pass_authorization: Annotated[
        bool,
        Flag(
            "with `auth: browser`: requests with the cookie, and those to public paths, may have an `Authorization`"
            " header of the application's own, which is forwarded. Tokens of the gateway never are"
        ),
    ] = False
    headers: Annotated[HeaderNames, Section("header names for `identity: requestHeader`", HeaderNames)] = field(
        default=HeaderNames()
    )
    tls: Annotated[ClientTls, Section("how it is trusted, and what is presented to it", ClientTls)] = field(
        default=ClientTls()
    )
    token_file: Annotated[
        Path | None,
        FilePath(
            "the gateway's own token there; read again every minute, and at once when the upstream answers 401. A 401"
            " about the gateway's own credential (of any Kubernetes upstream, and of any that is given a token or a"
            " client certificate) reaches users as 503",
            holds=Holds.SECRET,
            unset="none",
        ),
    ] = None
    health: Annotated[
        str | None,
        Text(
            "a path that is asked whether the upstream is well",
            pattern=PLAIN_PATH,
            mistake="it is not a plain path",
            hint="write it as in /readyz",
            unset="none",
        ),
    ] = None
    connections: Annotated[int, Integer("connections at a time, per worker")] = 1024
    queue: Annotated[int, Integer("requests that wait for a connection, per worker", least=0)] = 4096
    timeouts: Annotated[UpstreamTimeouts, Section("limits of time", UpstreamTimeouts)] = UpstreamTimeouts()
    redirect: Annotated[
        RedirectSettings | None,
        OptionalSection(
            "requests that are answered with a redirect to the backend itself; left out: none. Needs `issuer`",
            RedirectSettings,
        ),
    ] = None
    shadow: Annotated[
        ShadowSettings | None,
        OptionalSection(
            "requests whose decision is [compared](../how-to/compare-with-the-cluster.md) with the cluster's; left out:"
            " none. The gateway must be allowed to create subjectaccessreviews there",
            ShadowSettings,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamConfig(UpstreamSettings):
    """An upstream. The longest `prefix` wins, and an upstream with the host over one without hosts.

    `server` is scheme and authority without a path; for a Unix socket `socket` is set instead. Without a server it is
    reached only through other proxies, which use external authorization.
    """

    name: str
    server: str
    attributes: Provider[AttributesMapper]
    socket: Path | None = None
    # For an API plugin (`proxy.api_plugin`): its registered CA in PEM, and whether its redirects are rejected. It is
    # trusted less than an upstream, and clients follow a redirect with their token.
    authorities_pem: str | None = None
    refuses_redirects: bool = False
    place: Place = field(default=Place(), compare=False)

    @property
    def label(self) -> str:
        return self.display_name or self.name

    @property
    def is_application(self) -> bool:
        """Whether it is a web application, where browsers sign in."""
        return self.auth is UpstreamAuth.BROWSER

    @property
    def is_kubernetes(self) -> bool:
        """Whether it serves the Kubernetes API, with its verbs, resources and reviews."""
        return has_trait(self.attributes.instance, ReadsKubernetesPaths)
