"""External authorization: another proxy forwards the requests, and queries the gateway for each of them.

Forward auth (HTTP), Envoy's ``ext_authz`` (gRPC) and HAProxy's SPOE have a handler each. A new kind of HTTP proxy is a
member of `ProxyKind` and a row in `dialects`; one with another protocol also needs a handler.
"""
