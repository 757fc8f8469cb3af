"""The configuration of Envoy, which asks by the filter ``ext_authz`` over gRPC. Pure; called by `printing`.

It differs from the one over HTTP (`envoy`) in the filter that asks, and in how a route says where it leads.
"""

from __future__ import annotations

from ostiary.cli.door.envoy import FILTERS, whole_configuration
from ostiary.cli.door.layout import Backend, Layout
from ostiary.gateway.doors.check.question import DOOR_EXTENSION, HOST, LENGTH, METHOD, TARGET, UPSTREAM_EXTENSION
from ostiary.gateway.doors.forward.dialects import ORIGINAL_UPGRADE, SECRET_HEADER

_FILTER = "ostiary"
_QUESTION = """\
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
_PROOF = """\
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


def configuration(layout: Layout) -> str:
    sources = [name.decode() for name in (METHOD, TARGET, HOST, LENGTH, ORIGINAL_UPGRADE)]
    cookies = ["cookie"] if layout.cleans_cookies else []
    shown = "".join(f"                - {{exact: '{name}'}}\n" for name in (*sources, *cookies))
    secret = ""
    if layout.secret is not None:
        secret = _PROOF.format(name=SECRET_HEADER.decode(), secret=layout.secret.reveal())
    question = _QUESTION.format(name=_FILTER, filters=FILTERS, shown=shown, secret=secret)
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
