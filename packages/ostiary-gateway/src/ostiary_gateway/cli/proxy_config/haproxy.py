"""The configuration of HAProxy, with SPOE, and the file of its SPOE engine. Pure.

If the endpoint caches decisions (``decisions``), HAProxy first looks a request up in its map, and queries only on a
miss. Requests that need a query go to a separate backend, because the SPOE filter costs time for every request of its
section. The last rule of that backend denies whatever was not allowed before.

Rules cost time too, so those about unusual headers apply only to requests that are not plain. The list contains the
plain headers, not the unusual ones: a request with an unlisted header is checked by all rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.cli.proxy_config.layout import ANY_HOST, Backend, Layout, plain_names, prefixes
from ostiary_gateway.extauth.forward_auth import NO_DOOR
from ostiary_gateway.extauth.haproxy.decision_key import KEY_FORMAT
from ostiary_gateway.extauth.haproxy.decision_push import LEASE_SECONDS, CarrierMaps
from ostiary_gateway.extauth.identity_headers import answer_names

# Every status of an error response, with its headers in addition to the common ones.
STATUSES: dict[int, dict[str, str]] = {
    302: {"Location": "location"},
    303: {"Location": "location"},
    400: {},
    401: {"WWW-Authenticate": "challenge"},
    403: {},
    404: {},
    405: {},
    413: {},
    429: {"Retry-After": "retry_after"},
    431: {},
    500: {},
    503: {},
}
# Hop-by-hop headers.
_OF_CONNECTION = ("connection", "keep-alive", "proxy-connection", "proxy-authorization", "http2-settings")
_CONTENT = 'content-type application/json lf-string "%[var(txn.ostiary.body)]\\n" hdr Cache-Control "no-cache, private"'
_GLOBAL = """\
# {title}.
# It is complete: haproxy -f haproxy.cfg. Its parts can also be put into another configuration.
# How the gateway is asked stands in a file of its own, which holds the secret of the door:
#     ostiary-gateway door haproxy --spoe (with the same --config and --backend) > {spoe_file}
global
    # Of the 16 KiB that a request's headers may take, half is for what is added: users with many groups need it. More
    # of either takes a larger tune.bufsize, which makes HAProxy slower.
    tune.maxrewrite 8192
{runtime}
defaults
    mode http
    timeout connect 2s
    timeout client 1m
    timeout server 1m
    timeout tunnel 1h
    timeout http-request 10s
    timeout http-keep-alive 1m
    # Each request is decided on by itself, so any connection to an upstream will do.
    http-reuse aggressive
    # Trailers are headers to some programs: a client could claim there to be somebody.
    .if version_atleast(3.2)
    option http-drop-request-trailers
    .endif
"""
_RUNTIME = """\
    # Over this socket the gateway tells decisions, and takes them back. Only the gateway's user should reach it.
    stats socket {socket} level admin mode 660
"""
_FRONTEND = """\
frontend ostiary
    bind {listen}

    # Where a request goes. The gateway is told, and refuses what its own routes would send elsewhere.
{routes}
    # Most requests are plain: they have one Authorization, and other headers only of these names, none of which claims
    # to be somebody or says anything about the connection. The rules about such headers are for the others.
    acl ostiary_plain_names req.hdr_names -m reg ^(({plain}),)*authorization(,({plain}))*$
    acl ostiary_plain var(txn.ostiary.plain) -m bool
    http-request set-var(txn.ostiary.plain) bool(1) if ostiary_plain_names
    # A whole URL is passed on as a path, which is what is decided on.
    http-request set-uri %[pathq] if !{{ url_beg / }}
    # Before HAProxy 3.2 trailers cannot be dropped, so the length of a body must be announced.
    .if !version_atleast(3.2)
    http-request return status 411 if !ostiary_plain {{ req.fhdr_cnt(transfer-encoding) gt 0 }}
    http-request return status 411 if {{ req.ver 2.0 }} {{ req.fhdr_cnt(content-length) 0 }} {{ method POST PUT PATCH }}
    .endif
    option forwardfor

{lookup}    # Whatever has no pass yet is asked about there, or refused.
    default_backend ostiary-asked

# The gateway is asked. Only its answer makes a pass good.
backend ostiary-asked
    filter spoe engine ostiary config {spoe_file}
    acl ostiary_plain var(txn.ostiary.plain) -m bool
    # Only WebSocket passes: any other protocol would open a way behind the decision.
    http-request del-header Upgrade if !ostiary_plain !{{ req.fhdr(upgrade) -m str -i websocket }}
{questions}
{passing}    http-request add-header Connection upgrade if !ostiary_plain {{ req.fhdr_cnt(upgrade) gt 0 }}
    http-request allow if {{ var(txn.ostiary.good) -m bool }}

    # Refusals, as the gateway has said them.
{refusals}
    # The gateway could not be asked, or its answer was none: nobody is let in.
    http-request set-var-fmt(txn.ostiary.body) '{unavailable}'
    http-request return status 503 {content}

    # Where what the gateway has allowed goes.
{servers}
{backends}"""
# Changes to an allowed request before it is forwarded.
_PASSING = """\
    # What a client could claim to be, however it is spelled; its token; and what it says about its connection, which
    # could make the next program drop headers.
    http-request del-header Authorization
    http-request del-header ^({claims})$ -m reg if !ostiary_plain
    # Who the user is. Each header is always there, and nothing is left of the client's.
{identity}
{scheme}"""
_LOOKUP = """\
    # What was allowed before. A pass has the form EXPIRY|LEASE|USER|UID|GROUPS; it is good until it expires, and while
    # the gateway renews the lease, which it does as long as it knows of every revocation. There is none for what
    # switches the protocol, or is asked in another's name.
    acl ostiary_one_token req.fhdr_cnt(authorization) eq 1
    acl ostiary_named req.hdr_names -m found
    acl ostiary_once req.hdr_names -m reg (^|,)(impersonate|upgrade(,|$))
    acl ostiary_current var(txn.ostiary.pass),field(1,|),sub(txn.ostiary.now) -m int gt 0
    acl ostiary_leased var(txn.ostiary.pass),field(2,|),map_str_int({leases}),sub(txn.ostiary.now) -m int 1:{seconds}
    http-request set-var-fmt(txn.ostiary.key) "{key}" if ostiary_plain or ostiary_one_token ostiary_named !ostiary_once
    http-request set-var(txn.ostiary.pass) var(txn.ostiary.key),sha2(256),hex,map_str({decisions})
    http-request set-var(txn.ostiary.now) date
    use_backend ostiary-passed if ostiary_leased ostiary_current
"""
# The backend for cached decisions.
_PASSED = """\
# What was allowed before.
backend ostiary-passed
    acl ostiary_plain var(txn.ostiary.plain) -m bool
{passing}
{servers}
"""
_SPOE = """\
# {title}.
# It holds the secret of the door: chmod 600. HAProxy reads it as its configuration says: {spoe_file}
[ostiary]
spoe-agent ostiary
    groups {groups}
    option var-prefix ostiary
    timeout hello 2s
    timeout idle 1m
    timeout processing 15s
    use-backend ostiary-agents

"""
_MESSAGE = """\
spoe-message ostiary-{name}
    args {secret}method=method target=pathq version=req.ver headers=req.hdrs_bin
    args address=src stale=var(txn.ostiary.pass)

spoe-group ask-{name}
    messages ostiary-{name}

"""


def configuration(layout: Layout) -> str:
    decisions = layout.door.decisions
    parts = [
        _GLOBAL.format(
            title=layout.title,
            spoe_file=layout.spoe_file,
            runtime="" if decisions is None else _RUNTIME.format(socket=decisions.socket),
        ),
        _FRONTEND.format(
            listen=_listen(layout),
            spoe_file=layout.spoe_file,
            routes="".join(f"    {line}\n" for line in _routes(layout)),
            plain="|".join(plain_names(f"^({_one_of(_claims(layout))})$")),
            lookup=_lookup(layout),
            questions=_questions(layout),
            passing=_passing(layout),
            refusals="".join(f"    {_refusal(status)}\n" for status in STATUSES).rstrip("\n"),
            unavailable=NO_DOOR.body.decode().strip(),
            content=_CONTENT,
            servers=_servers(layout),
            backends=_backends(layout),
        ),
    ]
    return "\n".join(parts)


def spoe_configuration(layout: Layout) -> str:
    names = [backend.name for backend in layout.backends]
    groups = " ".join(f"ask-{name}" for name in names)
    secret = "" if layout.secret is None else f"secret=str({layout.secret.reveal()}) "
    head = _SPOE.format(title=layout.title, spoe_file=layout.spoe_file, groups=groups)
    return (head + "".join(_MESSAGE.format(name=name, secret=secret) for name in names)).rstrip("\n") + "\n"


def _listen(layout: Layout) -> str:
    tls = f" ssl crt {layout.listen_certificate} alpn h2,http/1.1" if layout.listen_certificate else ""
    return f"{layout.listen_address}{tls}"


def _routes(layout: Layout) -> list[str]:
    sites = layout.sites()
    hosts = [host for host in sites if host != ANY_HOST]
    lines = []
    if hosts:
        # Host names are case-insensitive, and may have a port.
        lines.append("http-request set-var(txn.ostiary.host) req.fhdr(host),host_only,lower")
    if ANY_HOST not in sites:
        names = " ".join(hosts)
        lines.append(f"http-request return status 421 if !{{ var(txn.ostiary.host) -m str {names} }}")
    if not layout.backends[1:]:
        prefix = layout.backends[0].prefix
        return [*lines, *([] if prefix == "/" else [f"http-request return status 404 if !{_below(prefix)}"])]
    for host, backends in sites.items():
        at_host = f"{{ var(txn.ostiary.host) -m str {host} }}" if host else _elsewhere(hosts)
        for number, backend in enumerate(backends):
            unset = "!{ var(txn.ostiary.to) -m found }" if number else ""
            below = "" if backend.prefix == "/" else _below(backend.prefix)
            condition = " ".join(filter(None, (at_host, below, unset)))
            suffix = f" if {condition}" if condition else ""
            lines.append(f"http-request set-var(txn.ostiary.to) str({backend.name}){suffix}")
    if any(backends[-1].prefix != "/" for backends in sites.values()):
        lines.append("http-request return status 404 if !{ var(txn.ostiary.to) -m found }")
    return lines


def _below(prefix: str) -> str:
    # Of the characters in a prefix, only the dot is special in a regular expression.
    return f"{{ pathq -m reg ^{prefix.replace('.', '[.]')}([/?]|$) }}"


def _elsewhere(hosts: list[str]) -> str:
    return f"!{{ var(txn.ostiary.host) -m str {' '.join(hosts)} }}" if hosts else ""


def _lookup(layout: Layout) -> str:
    if layout.door.decisions is None:
        return ""
    maps = CarrierMaps.of(layout.door.decisions.map)
    return _LOOKUP.format(
        key=rf"{layout.door.name}\n{_chosen(layout)}\n{KEY_FORMAT}",
        decisions=maps.decisions,
        leases=maps.leases,
        seconds=LEASE_SECONDS + 1,
    )


def _passing(layout: Layout) -> str:
    return _PASSING.format(
        claims=_one_of(_claims(layout)),
        identity="".join(f"    {line}\n" for line in _identity(layout)).rstrip("\n"),
        scheme="    http-request add-header X-Forwarded-Proto https\n" if layout.listen_certificate else "",
    )


def _chosen(layout: Layout) -> str:
    """Return the name of the upstream as part of a format string."""
    return "%[var(txn.ostiary.to)]" if layout.backends[1:] else layout.backends[0].name


def _questions(layout: Layout) -> str:
    lines = []
    for backend in layout.backends:
        condition = f" if {_goes_to(backend)}" if layout.backends[1:] else ""
        lines.append(f"    http-request send-spoe-group ostiary ask-{backend.name}{condition}\n")
    return "".join(lines)


def _goes_to(backend: Backend) -> str:
    return f"{{ var(txn.ostiary.to) -m str {backend.name} }}"


def _claims(layout: Layout) -> list[str]:
    """Return the names of headers that are removed; a trailing ``.*`` matches any rest.

    Nearly every request has ``Authorization``, which is always deleted; the others are rare.
    """
    beginnings = [*prefixes(layout.drop_headers), "x-forwarded-"]
    names = [name for name in layout.cleared if name != "authorization" and not name.startswith(tuple(beginnings))]
    return [*(f"{prefix}.*" for prefix in beginnings), *names, *_OF_CONNECTION]


def _one_of(claims: Sequence[str]) -> str:
    """Return one expression for all names.

    Applications that turn headers into variables treat a dash like any other character.
    """
    # Most begin with "x-" and are skipped for a header that does not.
    with_x = [claim[2:] for claim in claims if claim.startswith("x-")]
    others = [claim for claim in claims if not claim.startswith("x-")]
    return "|".join((*others, f"x-({'|'.join(with_x)})")).replace("-", ".")


def _identity(layout: Layout) -> list[str]:
    return [
        f"http-request add-header {name} %[var(txn.ostiary.pass),field({number},|),url_dec]"
        for number, name in enumerate(answer_names(layout.door.extra), start=3)
    ]


def _refusal(status: int) -> str:
    headers = {"Audit-Id": "audit_id", **STATUSES[status]}
    told = "".join(f' hdr {name} "%[var(txn.ostiary.{variable})]"' for name, variable in headers.items())
    # Kubernetes does not set it for missing objects, so it would reveal a hidden one.
    nosniff = "" if status == 404 else " hdr X-Content-Type-Options nosniff"
    condition = f"if {{ var(txn.ostiary.status) -m int {status} }}"
    return f"http-request return status {status} {_CONTENT}{told}{nosniff} {condition}"


def _servers(layout: Layout) -> str:
    choices = [f"    use-server {each.name} if {_goes_to(each)}\n" for each in layout.backends[1:] and layout.backends]
    return "".join((*choices, *(_server(backend) for backend in layout.backends)))


def _backends(layout: Layout) -> str:
    """Return the backend for cached decisions, and that of the gateway."""
    has_passes = layout.door.decisions is not None
    passed = _PASSED.format(passing=_passing(layout), servers=_servers(layout)) if has_passes else ""
    return (
        f"{passed}"
        "# The gateway, which is asked.\n"
        "backend ostiary-agents\n"
        "    mode tcp\n"
        "    timeout server 2m\n"
        "    retries 1\n"
        f"    server gateway {layout.gateway_address}{_tls(layout)}\n"
    )


def _server(backend: Backend) -> str:
    tls = ""
    if backend.is_tls:
        name = backend.certificate_name
        tls = f" ssl ssl-min-ver TLSv1.2 verify required ca-file {backend.ca or '@system-ca'} sni str({name})"
        tls += f" verifyhost {name}"
    return f"    server {backend.name} {backend.address}{tls}\n"


def _tls(layout: Layout) -> str:
    if layout.gateway.scheme != "https":
        return ""
    name = layout.gateway.hostname
    proof = "" if layout.certificate is None else f" crt {layout.certificate}"
    return f" ssl verify required ca-file {layout.ca} verifyhost {name}{proof}"
