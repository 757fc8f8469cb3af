"""The endpoints at which people sign in, from the issuer's discovery document. Pure; called by `oidc.identity`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostiary.plugins.common.jwt.issuer import endpoint


@dataclass(frozen=True, slots=True)
class IssuerMetadata:
    """`announces_iss`: its answers in the browser say who gives them (RFC 9207)."""

    authorization_endpoint: str
    token_endpoint: str
    user_info_endpoint: str = ""
    authentication_methods: tuple[str, ...] = ("client_secret_basic",)
    announces_iss: bool = False


def read_metadata(issuer: str, document: Mapping[str, object]) -> IssuerMetadata:
    """Raises ValueError if nobody can sign in there."""
    plain = issuer.startswith("http://")
    methods = document.get("token_endpoint_auth_methods_supported")
    return IssuerMetadata(
        authorization_endpoint=endpoint(document, "authorization_endpoint", plain=plain),
        token_endpoint=endpoint(document, "token_endpoint", plain=plain),
        user_info_endpoint=endpoint(document, "userinfo_endpoint", plain=plain, optional=True),
        authentication_methods=tuple(map(str, methods)) if isinstance(methods, list) else ("client_secret_basic",),
        announces_iss=document.get("authorization_response_iss_parameter_supported") is True,
    )
