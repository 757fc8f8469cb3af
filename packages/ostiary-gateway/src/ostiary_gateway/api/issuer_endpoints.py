"""Documents of the issuer: OpenID Connect discovery and the key set. Public: they need no token.

Verifiers may cache them, which is why keys are published before they sign.
"""

from __future__ import annotations

import json
import logging

from ostiary.errors import OstiaryError
from ostiary.wire import status
from ostiary_gateway.issuer.issuer import JwtIssuer
from ostiary_gateway.issuer.keys import ALGORITHM
from ostiary_gateway.proxy.context import RequestContext, Served
from ostiary_gateway.proxy.responses import send_status
from ostiary_gateway.proxy.target import path_of

log = logging.getLogger("ostiary.gateway")

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/.well-known/jwks.json"
DISCOVERY_SECONDS = 300
# kube-apiserver rejects an unknown key for as long as it may cache the set, less half a minute. So this is shorter than
# the time from the publication of a key to its first signature (`issuer.keys.TAKEN_UP_AFTER`).
KEYS_SECONDS = 5


class IssuerDocuments:
    """Serve the issuer's documents. *path* is the path of the issuer's URL, empty if it has none."""

    def __init__(self, issuer: JwtIssuer, path: str) -> None:
        self._issuer = issuer
        self._path = path
        self._discovery = json.dumps(discovery_document(issuer.url)).encode()

    @property
    def first_segment(self) -> bytes:
        """The first path segment of the documents, which the engine routes to this object."""
        return b"/" + (self._path + DISCOVERY).split("/")[1].encode()

    async def handle(self, ctx: RequestContext, served: Served) -> None:
        served(await self._answer(ctx))

    async def _answer(self, ctx: RequestContext) -> int:
        request = ctx.exchange.request
        path = path_of(request.target, request.host).partition(b"?")[0].decode("latin-1")
        if path not in (self._path + DISCOVERY, self._path + KEYS):
            return send_status(ctx, status.no_route())
        if request.method not in (b"GET", b"HEAD"):
            return send_status(ctx, status.method_not_allowed(), (b"Allow", b"GET, HEAD"))
        if path == self._path + DISCOVERY:
            return self._send(ctx, b"application/json", self._discovery, DISCOVERY_SECONDS)
        try:
            keys = await self._issuer.key_set()
        except OstiaryError as error:
            log.error("the key set cannot be served", extra={"cause": error.cause or error.summary})
            return send_status(ctx, status.failure(503, "ServiceUnavailable", "the keys cannot be read"))
        return self._send(ctx, b"application/jwk-set+json", json.dumps(keys).encode(), KEYS_SECONDS)

    def _send(self, ctx: RequestContext, content_type: bytes, body: bytes, seconds: int) -> int:
        if ctx.exchange.gone:
            return 0
        headers = [
            (b"Audit-Id", ctx.audit_id.encode()),
            (b"Cache-Control", b"public, max-age=%d" % seconds),
            (b"Content-Type", content_type),
            (b"X-Content-Type-Options", b"nosniff"),
        ]
        ctx.exchange.respond(200, headers, body)
        return 200


def discovery_document(url: str) -> dict[str, object]:
    """Return the discovery document for verifiers.

    Users do not sign in with this issuer, so there are no endpoints for that.
    """
    return {
        "issuer": url,
        "jwks_uri": url + KEYS,
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": [ALGORITHM],
        "claims_supported": ["iss", "sub", "aud", "exp", "nbf", "iat", "jti", "sid", "username", "groups", "uid"],
    }
