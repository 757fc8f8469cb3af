"""What an audit event must not hold: tokens in a URI, and bodies that carry credentials. Pure."""

from __future__ import annotations

import re
from urllib.parse import unquote_plus

from ostiary.core.secrets.redact import without_tokens
from ostiary.model import RequestInfo

REDACTED = "REDACTED"

# Names of query parameters, in small letters and without what stands between the words.
_SECRET_PARAMETERS = frozenset(
    (
        *("code", "state", "sig", "key", "pwd", "pass", "pin", "otp", "jwt", "auth", "authorization", "bearer"),
        *("sid", "session", "sessionid", "cookie", "ticket", "hmac", "devicecode", "usercode", "codeverifier"),
        *("samlresponse", "samlrequest", "relaystate"),
    )
)
# The same for their ends: X-Amz-Security-Token, client_secret, x-goog-signature.
_SECRET_ENDINGS = (
    *("token", "secret", "password", "passwd", "passphrase", "signature", "apikey", "accesskey", "privatekey"),
    *("secretkey", "credential", "credentials", "assertion"),
)
_PARAMETER = re.compile(r"[^&;#]+")
_BETWEEN_WORDS = re.compile(r"[^a-z0-9]+")


def redacted_uri(uri: str) -> str:
    """*uri* without the values that are secrets. A parameter's name is compared as a server would read it."""
    path, mark, query = uri.partition("?")
    if "%" in path:
        path = "/".join(map(_redacted_segment, path.split("/")))
    if mark:
        query = _PARAMETER.sub(lambda found: _redacted_parameter(found[0]), query)
    return without_tokens(path + mark + query, REDACTED)


def _redacted_segment(segment: str) -> str:
    return REDACTED if _holds_token(unquote_plus(segment)) else segment


def _holds_token(text: str) -> bool:
    return without_tokens(text, REDACTED) != text


def _redacted_parameter(parameter: str) -> str:
    name, equals, value = parameter.partition("=")
    words = _BETWEEN_WORDS.sub("", unquote_plus(name).lower())
    secret = words in _SECRET_PARAMETERS or words.endswith(_SECRET_ENDINGS) or _holds_token(unquote_plus(value))
    return f"{name}={REDACTED}" if secret and equals and value else parameter


# What these carry in their bodies is itself a credential. A record of it would be a second place to steal it from.
_CREDENTIALS = frozenset(
    {
        ("", "secrets", ""),
        ("", "serviceaccounts", "token"),
        ("ostiary.dev", "serviceaccounts", "token"),
        ("ostiary.dev", "apitokens", ""),
    }
)
_REVIEWS = ("authentication.k8s.io", "tokenreviews")


def carries_credentials(request: RequestInfo) -> bool:
    """Whether the bodies of such a request or of its answer are never recorded, whatever the level."""
    if (request.api_group, request.resource) == _REVIEWS:
        return True
    return (request.api_group, request.resource, request.subresource) in _CREDENTIALS
