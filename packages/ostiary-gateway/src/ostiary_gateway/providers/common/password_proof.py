"""The username and password of a client: HTTP Basic, or the two fields of a form.

Invalid input counts as no input, so the client is challenged again. An empty password is invalid: a directory would
treat it as an anonymous bind and accept it.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Annotated, TypeAlias

from ostiary.model import Secret
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.settings.kinds import Text

MAX_PASSWORD_BYTES = 1024
_NO_REALM = "it must be printable ASCII without quotes and backslashes"
Realm: TypeAlias = Annotated[
    str,
    Text(
        "what a client shows to a person who is asked for a password",
        unset="the entry's name",
        pattern=r"[ !#-\[\]-~]+",
        mistake=_NO_REALM,
        empty=_NO_REALM,
    ),
]


def password_proof(request: LoginRequest) -> tuple[str, Secret] | None:
    """Return the username and the password, or None if there are none or they are invalid."""
    pair = _basic(request.header("authorization") or "") or _form(request)
    if pair is None:
        return None
    username, password = pair
    encoded = password.reveal().encode("utf-8", "surrogatepass")
    # bcrypt reads a password only up to its first NUL.
    if username == "" or not password or b"\0" in encoded or len(encoded) > MAX_PASSWORD_BYTES:
        return None
    return username, password


def basic_challenge(realm: str) -> str:
    return f'Basic realm="{realm}", charset="UTF-8"'


def realm_of(setting: str, context: Context) -> str:
    """Return the realm that a client shows in its password prompt; by default the name of the provider."""
    return setting or context.name or "ostiary"


def _basic(header: str) -> tuple[str, Secret] | None:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        username, colon, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (username, Secret(password)) if colon else None


def _form(request: LoginRequest) -> tuple[str, Secret] | None:
    names = [value for key, value in request.form if key == "username"]
    passwords = [value for key, value in request.form if key == "password"]
    if len(names) != 1 or len(passwords) != 1 or request.method != "POST":
        return None
    return names[0], Secret(passwords[0])
