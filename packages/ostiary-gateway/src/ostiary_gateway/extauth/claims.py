"""Headers by which a client could claim to be somebody, and which of them a proxy takes out. Pure.

Our own proxy drops such headers by their normalised names. Another one forwards what its configuration does not name:
``ostiary-gateway door`` prints a configuration that clears `CLEARED`. With a proxy that cannot clear by a pattern
(nginx), or that may miss a spelling (Caddy), a request with any other claim is refused, because that would reach the
upstream.
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

# Of the names that are protected by their beginning (`IDENTITY_PREFIXES`), those that are in use.
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
# Set by the proxy itself, to what it knows.
OVERWRITTEN = ("x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip")
# Cleared by every printed configuration.
CLEARED = tuple(sorted({name.decode() for name in (*IDENTITY, *OVERRIDES)} | set(_IN_USE) - set(OVERWRITTEN)))


def cleared(drop: Sequence[str] = ()) -> list[str]:
    """What a printed configuration clears by name; *drop* are the operator's own names (``listen.dropHeaders``)."""
    return sorted({*CLEARED, *(name.lower() for name in drop if not name.endswith("*"))})


class CarriedHeaders(HeaderFilter):
    """Reads the headers of a carried request. A token that the proxy cannot take out of them is refused."""

    def scan(self, headers: Headers) -> FilteredHeaders:
        # Among the WebSocket protocols: a proxy sets or removes whole headers, and this one has others in it.
        if websocket_token(headers) is not None:
            raise BadHeader("a token in Sec-WebSocket-Protocol cannot pass another proxy: send it in Authorization")
        return super().scan(headers)


class ClaimsRefused(CarriedHeaders):
    """Also refuses claims that the proxy would let pass to the upstream.

    *told* are the names of the answer's headers, which the proxy puts in the place of the client's, and *drop* more
    names that never pass.
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
