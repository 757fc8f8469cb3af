"""The endpoints of an issuer, from its discovery document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ostiary_gateway.providers.common.jwt_issuer import endpoint


@dataclass(frozen=True, slots=True)
class IssuerMetadata:
    """The metadata that sign-ins need.

    `announces_iss`: authorization responses carry ``iss`` (RFC 9207). `response_modes` is None if not announced.
    """

    authorization_endpoint: str
    token_endpoint: str
    user_info_endpoint: str = ""
    authentication_methods: tuple[str, ...] = ("client_secret_basic",)
    announces_iss: bool = False
    response_modes: tuple[str, ...] | None = None
    pushed_request_endpoint: str = ""
    requires_pushed_requests: bool = False


def read_metadata(issuer: str, document: Mapping[str, object]) -> IssuerMetadata:
    """Return the metadata. Raise ValueError if an endpoint that sign-ins need is missing or invalid."""
    plain = issuer.startswith("http://")
    methods = _texts(document, "token_endpoint_auth_methods_supported")
    pushed = "pushed_authorization_request_endpoint"
    return IssuerMetadata(
        authorization_endpoint=endpoint(document, "authorization_endpoint", plain=plain),
        token_endpoint=endpoint(document, "token_endpoint", plain=plain),
        user_info_endpoint=endpoint(document, "userinfo_endpoint", plain=plain, optional=True),
        authentication_methods=("client_secret_basic",) if methods is None else methods,
        announces_iss=document.get("authorization_response_iss_parameter_supported") is True,
        response_modes=_texts(document, "response_modes_supported"),
        pushed_request_endpoint=endpoint(document, pushed, plain=plain, optional=True),
        requires_pushed_requests=document.get("require_pushed_authorization_requests") is True,
    )


def _texts(document: Mapping[str, object], name: str) -> tuple[str, ...] | None:
    values = document.get(name)
    return tuple(map(str, values)) if isinstance(values, list) else None
