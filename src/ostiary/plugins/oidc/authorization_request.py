"""The request with which a browser is sent to the issuer. Called by `oidc.identity`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from ostiary.interfaces.identity import LoginRequest, Redirect
from ostiary.plugins.common.authorization_code import begin
from ostiary.plugins.oidc.metadata import IssuerMetadata

NONCE = "nonce"


def authorization_request(parameters: Mapping[str, str], request: LoginRequest, metadata: IssuerMetadata) -> Redirect:
    """The way to the issuer's page, with *parameters* beside those that every such request has."""
    nonce = secrets.token_urlsafe(32)
    endpoint = urlsplit(metadata.authorization_endpoint)
    asked = {
        # Some issuers have parameters of their own in the address of the page.
        **dict(parse_qsl(endpoint.query, keep_blank_values=True)),
        "response_type": "code",
        "nonce": nonce,
        **parameters,
    }
    redirect = begin(urlunsplit(endpoint._replace(query="")), asked, request)
    return replace(redirect, remember=(*redirect.remember, (NONCE, nonce)))
