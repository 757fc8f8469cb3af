"""The configuration of Envoy, with the filter ``ext_authz`` over HTTP or gRPC. Pure.

`whole_configuration` is the part that does not depend on the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address

from ostiary_gateway.cli.proxy_config.layout import (
    ANY_HOST,
    SYSTEM_AUTHORITIES,
    Backend,
    Layout,
    any_spelling,
    port_of,
    prefixes,
)
from ostiary_gateway.extauth.dialects import ORIGINAL_UPGRADE, SECRET_HEADER, SIGN_IN_PATHS
from ostiary_gateway.extauth.ext_authz import DOOR_EXTENSION, HOST, LENGTH, METHOD, TARGET, UPSTREAM_EXTENSION
from ostiary_gateway.settings.outgoing import is_ip

# Headers of an error response that reach the client, in addition to its status and its body.
REFUSAL_HEADERS = (
    *("audit-id", "cache-control", "content-type", "retry-after", "www-authenticate", "x-content-type-options"),
)
# Further headers for a browser that is redirected to the sign-in page, or shown a page.
REFUSAL_HEADERS_OF_BROWSERS = (
    *("content-security-policy", "location", "referrer-policy", "set-cookie", "vary", "x-frame-options"),
    "x-ostiary-sign-in",
)
# Forwarding headers that Envoy does not set itself.
_NOT_OVERWRITTEN = ("x-forwarded-host", "x-forwarded-port")
FILTERS = "type.googleapis.com/envoy.extensions.filters"
_LISTENER = """\
# {title}.
# It holds the secret of the door: chmod 600.
static_resources:
  listeners:
  - name: ostiary
    address: {{socket_address: {{address: '{host}', port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': {filters}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: ostiary
          use_remote_address: true
          # What is decided on is what is forwarded: one form of each path, and none that has two readings.
          normalize_path: true
          merge_slashes: true
          path_with_escaped_slashes_action: REJECT_REQUEST
          # X_Remote_User is X-Remote-User to many programs.
          common_http_protocol_options: {{headers_with_underscores_action: DROP_HEADER}}
          # Only WebSocket passes: any other protocol would open a way behind the decision.
          upgrade_configs: [{{upgrade_type: websocket}}]
          http_filters:
          # What a client could claim to be. Impersonate-* and Authorization are for the gateway, and go afterwards.
          - name: ostiary-claims
            typed_config:
              '@type': {filters}.http.header_mutation.v3.HeaderMutation
              mutations:
                request_mutations:
{claims}                # Tells the gateway that the connection will switch protocols.
                - {{remove: x-original-upgrade}}
                - append: {{header: {{key: x-original-upgrade, value: '%REQ(upgrade)%'}}, append_action: ADD_IF_ABSENT}}
"""
_QUESTION = """\
          - name: ostiary-{name}
            typed_config:
              '@type': {filters}.http.ext_authz.v3.ExtAuthz
              # Nobody is let in while the gateway cannot be asked.
              failure_mode_allow: false
              status_on_error: {{code: ServiceUnavailable}}
              # What the gateway sees beside Host, method, path and Authorization.
              allowed_headers:
                patterns:
                - {{exact: user-agent}}
                - {{exact: x-original-upgrade}}
                - {{exact: sec-websocket-protocol}}
                - {{prefix: impersonate}}
{browsers}              http_service:
                server_uri: {{uri: '{gateway}', cluster: ostiary-gateway, timeout: 15s}}
                path_prefix: {path}
                authorization_request:
                  headers_to_add:
                  - {{key: x-original-address, value: '%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%'}}
{secret}                authorization_response:
                  # Who the user is.
                  allowed_upstream_headers:
                    patterns:
{identity}                  allowed_client_headers:
                    patterns:
{refusals}"""
_PROOF = """\
                  - {{key: x-ostiary-door, value: '{secret}'}}
"""
_AFTERWARDS = """\
          - name: ostiary-credentials
            typed_config:
              '@type': {filters}.http.header_mutation.v3.HeaderMutation
              mutations:
                request_mutations:
                - {{remove: authorization}}
                - {{remove: x-original-upgrade}}
                - {{remove_on_match: {{key_matcher: {{prefix: impersonate}}}}}}
{cookies}          - name: envoy.filters.http.router
            typed_config: {{'@type': {filters}.http.router.v3.Router}}
          route_config:
            virtual_hosts:
{hosts}  clusters:
{clusters}"""
_COOKIES = """\
          # The client's cookies without those of the gateway; if none are left, there is no such header.
          - name: client-cookies
            typed_config:
              '@type': {filters}.http.header_mutation.v3.HeaderMutation
              mutations:
                request_mutations:
                - {{remove: cookie}}
                - append: {{header: {{key: cookie, value: '%REQ(x-ostiary-cookie)%'}}, append_action: ADD_IF_ABSENT}}
                - {{remove: x-ostiary-cookie}}
"""
_SIGN_IN = """\
              # Browsers come back from sign-in here, or sign out. Nothing else of the gateway is at this host. The
              # Host is not as the client writes it, who could name another one.
              - match: {{path: {path}}}
                route: {{cluster: ostiary-sign-in, host_rewrite_literal: '{host}', timeout: 15s}}
                typed_per_filter_config:
                  client-cookies: {{'@type': type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true}}
{others}"""
_HOST = """\
            - name: '{name}'
              domains: [{domains}]
              routes:
{routes}"""
_ROUTE = """\
              - match: {{{match}}}
                route: {{cluster: ostiary-to-{name}, timeout: 0s}}
{question}"""
_CLUSTER = """\
  - name: {name}
    type: LOGICAL_DNS
    dns_lookup_family: ALL
    connect_timeout: 2s
{protocol}    load_assignment:
      cluster_name: {name}
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: '{host}', port_value: {port}}}}}}}
"""
_TLS = """\
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        '@type': type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
{sni}        common_tls_context:
          # Of itself Envoy stays at 1.2 with servers.
          tls_params: {{tls_minimum_protocol_version: TLSv1_2, tls_maximum_protocol_version: TLSv1_3}}
          validation_context:
            trusted_ca: {{filename: '{ca}'}}
            match_typed_subject_alt_names: [{{san_type: {san_type}, matcher: {{exact: '{name}'}}}}]
{proof}"""


# Returns the lines of a route that configure its authorization query.
PerRoute = Callable[[Layout, Backend], str]


def configuration(layout: Layout) -> str:
    questions = "".join(_question(layout, backend) for backend in layout.backends)
    names = [_filter_name(backend) for backend in layout.backends]
    return whole_configuration(layout, questions, names, _only_its_own_question)


def whole_configuration(
    layout: Layout, questions: str, filter_names: Sequence[str], per_route: PerRoute, gateway_protocol: str = ""
) -> str:
    """Return the whole configuration.

    *questions* are the filters, and *gateway_protocol* are lines of the gateway's cluster.
    """
    parts = [
        _LISTENER.format(
            title=layout.title,
            host=layout.listen_host,
            port=layout.listen_port,
            filters=FILTERS,
            claims=_claims(layout),
        )
    ]
    hosts = "".join(
        _virtual_host(layout, host, backends, per_route, filter_names) for host, backends in layout.sites().items()
    )
    cookies = _COOKIES.format(filters=FILTERS) if layout.cleans_cookies else ""
    clusters = _clusters(layout, gateway_protocol)
    parts += [questions, _AFTERWARDS.format(filters=FILTERS, cookies=cookies, hosts=hosts, clusters=clusters)]
    return "".join(parts)


def _claims(layout: Layout) -> str:
    beginnings = [prefix for prefix in prefixes(layout.drop_headers) if prefix != "impersonate"]
    for_gateway = ("authorization", "impersonate", *beginnings)
    names = [name for name in layout.cleared if not name.startswith(for_gateway)]
    # Some applications treat X.Remote.User like X-Remote-User, as they do X_Remote_User.
    patterns = [*(f"{any_spelling(prefix)}.*" for prefix in beginnings), *map(any_spelling, names)]
    lines = [
        *(f"- {{remove_on_match: {{key_matcher: {{safe_regex: {{regex: '{each}'}}}}}}}}" for each in patterns),
        *(f"- {{remove: {name}}}" for name in _NOT_OVERWRITTEN),
        # Envoy would append to the client's value.
        "- append:",
        "    header: {key: x-forwarded-for, value: '%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%'}",
        "    append_action: OVERWRITE_IF_EXISTS_OR_ADD",
    ]
    return "".join(f"                {line}\n" for line in lines)


def _question(layout: Layout, backend: Backend) -> str:
    identity = "".join(f"                    - {{exact: {name.lower()}}}\n" for name in layout.copied_headers(backend))
    to_client = (*REFUSAL_HEADERS, *(REFUSAL_HEADERS_OF_BROWSERS if backend.is_application else ()))
    refusals = "".join(f"                    - {{exact: {name}}}\n" for name in to_client)
    return _QUESTION.format(
        filters=FILTERS,
        name=backend.name,
        gateway=layout.gateway.geturl(),
        path=layout.question_path(backend),
        secret="" if layout.secret is None else _PROOF.format(secret=layout.secret.reveal()),
        browsers="".join(f"                - {{exact: {name}}}\n" for name in layout.browser_headers(backend)),
        identity=identity,
        refusals=refusals,
    )


def _virtual_host(
    layout: Layout, host: str, backends: Sequence[Backend], per_route: PerRoute, filter_names: Sequence[str]
) -> str:
    # With any port, and without.
    domains = "'*'" if host == ANY_HOST else f"'{host}', '{host}:*'"
    routes = "".join(_route(backend, per_route(layout, backend)) for backend in backends)
    if sign_in_host := layout.sign_in_host(host):
        off = _switched_off(filter_names)
        routes = "".join(_SIGN_IN.format(path=path, host=sign_in_host, others=off) for path in SIGN_IN_PATHS) + routes
    return _HOST.format(name=host or "any", domains=domains, routes=routes)


def _route(backend: Backend, question: str) -> str:
    match = "prefix: /" if backend.prefix == "/" else f"path_separated_prefix: {backend.prefix}"
    return _ROUTE.format(match=match, name=backend.name, question=question)


def _only_its_own_question(layout: Layout, backend: Backend) -> str:
    # Each upstream has its own filter. A route must disable the others, or its requests would have to pass them all.
    others = [_filter_name(each) for each in layout.backends if each is not backend]
    return ("                typed_per_filter_config:\n" if others else "") + _switched_off(others)


def _filter_name(backend: Backend) -> str:
    return f"ostiary-{backend.name}"


def _switched_off(filter_names: Sequence[str]) -> str:
    """Return the lines that disable these filters."""
    per_route = f"{{'@type': {FILTERS}.http.ext_authz.v3.ExtAuthzPerRoute, disabled: true}}"
    return "".join(f"                  {name}: {per_route}\n" for name in filter_names)


def _clusters(layout: Layout, gateway_protocol: str) -> str:
    gateway = layout.gateway
    # An IPv6 address has no brackets here, unlike in a URL.
    host, port = gateway.hostname or "", port_of(gateway)
    parts = [_CLUSTER.format(name="ostiary-gateway", host=host, port=port, protocol=gateway_protocol)]
    ca = layout.ca or SYSTEM_AUTHORITIES
    if gateway.scheme == "https":
        proof = ""
        if layout.certificate is not None:
            pair = f"certificate_chain: {{filename: '{layout.certificate}'}}, private_key: {{filename: '{layout.key}'}}"
            proof = f"          tls_certificates: [{{{pair}}}]\n"
        parts.append(_tls(host, ca, proof))
    if layout.has_applications:
        # Without the proxy's client certificate, which does not authenticate browsers.
        parts.append(_CLUSTER.format(name="ostiary-sign-in", host=host, port=port, protocol=""))
        parts.append(_tls(host, ca) if gateway.scheme == "https" else "")
    for backend in layout.backends:
        host, port = backend.url.hostname or "", port_of(backend.url)
        parts.append(_CLUSTER.format(name=f"ostiary-to-{backend.name}", host=host, port=port, protocol=""))
        if backend.is_tls:
            parts.append(_tls(backend.certificate_name, backend.ca or SYSTEM_AUTHORITIES))
    return "".join(parts)


def _tls(name: str, ca: str, proof: str = "") -> str:
    """Return the TLS settings that verify *name*.

    With the authority alone, any certificate that it issued would be accepted.
    """
    if is_ip(name):
        # Envoy compares texts, and formats the IPv6 address of a certificate in its short form. An address cannot be a
        # server name (RFC 6066, section 3).
        return _TLS.format(sni="", ca=ca, san_type="IP_ADDRESS", name=ip_address(name), proof=proof)
    return _TLS.format(sni=f"        sni: '{name}'\n", ca=ca, san_type="DNS", name=name, proof=proof)


# ``ext_authz`` over gRPC. Differs from HTTP in the filter, and in how a route names its upstream.

_FILTER = "ostiary"
_ENVOY_GRPC_QUESTION = """\
          - name: {name}
            typed_config:
              '@type': {filters}.http.ext_authz.v3.ExtAuthz
              transport_api_version: V3
              # Nobody is let in while the gateway cannot be asked.
              failure_mode_allow: false
              status_on_error: {{code: ServiceUnavailable}}
              # As the client sent them: nothing is joined, and nothing replaced.
              encode_raw_headers: true
              # What the gateway sees.
              allowed_headers:
                patterns:
{shown}                - {{exact: authorization}}
                - {{exact: user-agent}}
                - {{exact: sec-websocket-protocol}}
                - {{prefix: impersonate}}
              grpc_service:
                timeout: 15s
                envoy_grpc: {{cluster_name: ostiary-gateway}}
{secret}"""
_ENVOY_GRPC_PROOF = """\
                initial_metadata:
                - {{key: {name}, value: '{secret}'}}
"""
_CONTEXT = """\
                # The door, and the upstream that this route leads to: a client has no say in it.
                typed_per_filter_config:
                  {name}:
                    '@type': {filters}.http.ext_authz.v3.ExtAuthzPerRoute
                    check_settings:
                      context_extensions: {{{door_key}: '{door}', {upstream_key}: '{upstream}'}}
"""
_HTTP2 = """\
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        '@type': type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
"""


def grpc_configuration(layout: Layout) -> str:
    sources = [name.decode() for name in (METHOD, TARGET, HOST, LENGTH, ORIGINAL_UPGRADE)]
    cookies = ["cookie"] if layout.cleans_cookies else []
    shown = "".join(f"                - {{exact: '{name}'}}\n" for name in (*sources, *cookies))
    secret = ""
    if layout.secret is not None:
        secret = _ENVOY_GRPC_PROOF.format(name=SECRET_HEADER.decode(), secret=layout.secret.reveal())
    question = _ENVOY_GRPC_QUESTION.format(name=_FILTER, filters=FILTERS, shown=shown, secret=secret)
    return whole_configuration(layout, question, [_FILTER], _context, _HTTP2)


def _context(layout: Layout, backend: Backend) -> str:
    return _CONTEXT.format(
        name=_FILTER,
        filters=FILTERS,
        door_key=DOOR_EXTENSION.decode(),
        door=layout.door.name,
        upstream_key=UPSTREAM_EXTENSION.decode(),
        upstream=backend.name,
    )
