"""Routes of the Kubernetes Gateway API, with the filter ``ExternalAuth`` over HTTP. Pure.

The filter is in the experimental channel since version 1.4. It sends Host, method, path and Authorization of the
request, and other headers only if they are listed. Without a list it copies every header of an allow response.
"""

from __future__ import annotations

from ostiary_gateway.cli.proxy_config.layout import Backend, Layout, port_of
from ostiary_gateway.extauth.dialects import SIGN_IN_PATHS

# Further headers that the gateway needs. The filter lists names and supports no patterns.
ALLOWED_HEADERS = (
    *("Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "User-Agent", "X-Forwarded-For", "X-Ostiary-Door"),
)
REMOVED_HEADERS = ("Authorization", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid")
_HEAD = """\
# {title}.
# It holds the secret of the door: let nobody read the routes who may not know it, or use a client certificate of the
# Gateway (spec.tls.backend.clientCertificateRef) and callers.names in place of the secret.
# The filter ExternalAuth is in the experimental channel of the Gateway API.
# An upstream must not believe X_Remote_User, or X-Remote-* beyond the names of the answer: no filter takes them out.
"""
_ROUTE = """\
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: {name}
spec:
  parentRefs:
  - name: {parent}
{hosts}  rules:
{sign_in}  - matches:
    - path: {{type: PathPrefix, value: {prefix}}}
    filters:
{secret}    - type: ExternalAuth
      externalAuth:
        protocol: HTTP
        backendRef: {{name: '{gateway}', port: {port}}}
        http:
          path: {path}
          allowedHeaders:
{allowed}          # In the place of what the client claims. An empty list would copy all headers of the answer, with
          # Content-Length: what the client sends would then be read as two requests.
          allowedResponseHeaders:
{answered}    # The token, and whom it asks to be, are for the gateway only.
    - type: RequestHeaderModifier
      requestHeaderModifier:
        remove: [{removed}]
    backendRefs:
    - {{name: '{backend}', port: {backend_port}}}
"""
_SIGN_IN = """\
  # Browsers come back from sign-in here, or sign out. Nothing else of the gateway is at this host, and the Host must
  # reach it as browsers write it.
  - matches:
{matches}    backendRefs:
    - {{name: '{gateway}', port: {port}}}
"""
_PROOF = """\
    # Goes to the gateway, whose answer overwrites it, so that the upstream does not see it.
    - type: RequestHeaderModifier
      requestHeaderModifier:
        set: [{{name: X-Ostiary-Door, value: '{secret}'}}]
"""
# Without this policy a Gateway uses plain HTTP to the Service.
_TLS_POLICY = """\
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata:
  name: {name}
spec:
  targetRefs:
  - {{group: '', kind: Service, name: '{service}'}}
  validation:
    hostname: {hostname}
{authorities}"""
_AUTHORITIES = """\
    # kubectl create configmap {name}-ca --from-file=ca.crt={file}
    caCertificateRefs:
    - {{group: '', kind: ConfigMap, name: {name}-ca}}
"""


def configuration(layout: Layout) -> str:
    routes = [_route(layout, backend) for backend in layout.backends]
    # One policy per Service, however many routes use it: of two, only the older would apply.
    services = {(each.url.hostname, each.certificate_name, each.ca): each for each in layout.backends if each.is_tls}
    return "".join((_HEAD.format(title=layout.title), *routes, *map(_tls_policy, services.values())))


def _tls_policy(backend: Backend) -> str:
    authorities = "    wellKnownCACertificates: System\n"
    if backend.ca is not None:
        authorities = _AUTHORITIES.format(name=backend.name, file=backend.ca)
    return _TLS_POLICY.format(
        name=backend.name,
        service=backend.url.hostname,
        hostname=backend.certificate_name,
        authorities=authorities,
    )


def _route(layout: Layout, backend: Backend) -> str:
    allowed = [name for name in ALLOWED_HEADERS if layout.secret is not None or name != "X-Ostiary-Door"]
    allowed += [name.title() for name in layout.browser_headers(backend)]
    return _ROUTE.format(
        name=backend.name,
        parent="gateway",
        hosts=f"  hostnames: [{', '.join(backend.hosts)}]\n" if backend.hosts else "",
        sign_in=_sign_in(layout) if backend.is_application else "",
        prefix=backend.prefix,
        secret="" if layout.secret is None else _PROOF.format(secret=layout.secret.reveal()),
        gateway=layout.gateway.hostname,
        port=port_of(layout.gateway),
        path=layout.question_path(backend),
        allowed="".join(f"          - {name}\n" for name in allowed),
        answered="".join(f"          - {name}\n" for name in _answered(layout, backend)),
        removed=", ".join(REMOVED_HEADERS),
        backend=backend.url.hostname,
        backend_port=port_of(backend.url),
    )


def _sign_in(layout: Layout) -> str:
    matches = "".join(f"    - path: {{type: Exact, value: {path}}}\n" for path in SIGN_IN_PATHS)
    return _SIGN_IN.format(matches=matches, gateway=layout.gateway.hostname, port=port_of(layout.gateway))


def _answered(layout: Layout, backend: Backend) -> list[str]:
    return [*layout.copied_headers(backend), *(() if layout.secret is None else ("X-Ostiary-Door",))]
