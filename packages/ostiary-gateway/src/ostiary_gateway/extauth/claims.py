"""Identity headers that a client could forge, and which of them another proxy removes. Pure.

The gateway's own proxy drops such headers by their normalised names. Another proxy forwards what its configuration does
not name: ``ostiary-gateway door`` prints a configuration that clears `CLEARED`. For a proxy that cannot clear by a
pattern (nginx), or may miss a spelling (Caddy), a request with any other identity header is rejected, because the
header would reach the upstream.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.http1.headers import (
    IDENTITY,
    OVERRIDES,
    BadHeader,
    FilteredHeaders,
    HeaderFilter,
    Headers,
    normal_name,
    websocket_token,
)

# Names in common use among those protected by their prefix (`IDENTITY_PREFIXES`).
_IN_USE = (
    *("impersonate-user", "impersonate-group", "impersonate-uid", "remote-user", "remote-groups", "remote-email"),
    *("remote-name", "x-webauth-user", "x-webauth-name", "x-webauth-email", "x-webauth-groups"),
    *("x-forwarded-user", "x-forwarded-email", "x-forwarded-groups", "x-forwarded-preferred-username"),
    *("x-forwarded-access-token", "x-forwarded-client-cert", "x-forwarded-tls-client-cert", "x-forwarded-method"),
    *("x-forwarded-uri", "x-forwarded-prefix", "x-forwarded-path", "x-forwarded-server", "x-forwarded-scheme"),
    *("x-forwarded-ssl", "x-forwarded-by", "x-auth-request-user", "x-auth-request-email", "x-auth-request-groups"),
    *("x-auth-request-preferred-username", "x-auth-request-access-token", "x-auth-request-redirect"),
    *("ssl-client-cert", "ssl-client-verify", "ssl-client-subject-dn", "ssl-client-issuer-dn"),
    *("x-ssl-client-cert", "x-ssl-client-verify", "x-ssl-client-dn", "x-ssl-client-cn"),
    *("x-authenticated-user", "x-authenticated-userid", "x-authenticated-groups", "x-goog-authenticated-user-email"),
    *("x-goog-authenticated-user-id", "x-goog-iap-jwt-assertion", "x-ms-client-principal"),
    *("x-ms-client-principal-id", "x-ms-client-principal-name", "x-ms-client-principal-idp", "x-amzn-oidc-data"),
    *("x-amzn-oidc-identity", "x-amzn-oidc-accesstoken", "x-pomerium-jwt-assertion", "x-pomerium-claim-email"),
    *("cf-access-jwt-assertion", "cf-access-authenticated-user-email", "client-cert", "client-cert-chain"),
    *("x-client-certificate", "x-authentik-username", "x-authentik-groups", "x-authentik-email", "x-authentik-name"),
    *("x-authentik-uid", "x-authentik-jwt", "x-authentik-entitlements"),
    *("tailscale-user-login", "tailscale-user-name", "tailscale-user-profile-pic"),
)
# Set by the proxy itself, to values that it knows.
OVERWRITTEN = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip")
# Cleared by every printed configuration.
CLEARED = tuple(sorted({name.decode() for name in (*IDENTITY, *OVERRIDES)} | set(_IN_USE) - set(OVERWRITTEN)))


def cleared(drop: Sequence[str] = ()) -> list[str]:
    """Return the names that a printed configuration clears.

    *drop* are the operator's names (``listen.dropHeaders``).
    """
    return sorted({*CLEARED, *(name.lower() for name in drop if not name.endswith("*"))})


class CarriedHeaders(HeaderFilter):
    """Filter the headers of a forwarded request. Reject a token that the proxy cannot remove."""

    def scan(self, headers: Headers) -> FilteredHeaders:
        # The token is one of the WebSocket protocols: a proxy sets or removes whole headers, and this one has other
        # values too.
        if websocket_token(headers) is not None:
            raise BadHeader("a token in Sec-WebSocket-Protocol cannot pass another proxy: send it in Authorization")
        return super().scan(headers)


class ClaimsRefused(CarriedHeaders):
    """Like `CarriedHeaders`, but also reject identity headers that the proxy would forward to the upstream.

    *told* are the names of the response headers with which the proxy replaces the client's, and *drop* further names
    that are never forwarded.
    """

    def __init__(self, told: Sequence[str], *, drop: Sequence[str] = ()) -> None:
        super().__init__(drop=drop)
        self._passable = {name.lower().encode() for name in (*told, *cleared(drop), *OVERWRITTEN)}

    def scan(self, headers: Headers) -> FilteredHeaders:
        for name, _ in headers:
            lower = name.lower()
            if lower not in self._passable and self.is_protected(normal_name(lower)):
                raise BadHeader("the request has a header that only the gateway may set")
        return super().scan(headers)
