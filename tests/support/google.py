"""A stand-in of Google: tokens for a service account and for a person's consent, Cloud Identity and the Directory.

Paths, parameters and fields are those of Google's reference. How it refuses is partly an assumption, and never
compared with Google itself: false flags are left out, a backslash escapes an apostrophe, and a group that does not
exist is "hidden, or not there" with a 403, as people report it of other calls. `tells_missing` makes that a 404.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from tests.support.http_server import Request, Response
from tests.support.oauth_server import OAuthServer

PERSON_SCOPE = "https://www.googleapis.com/auth/cloud-identity.groups.readonly"
DIRECTORY_SCOPE = "https://www.googleapis.com/auth/admin.directory.group.member.readonly"
HIDDEN = Response(
    403,
    {
        "error": {
            "code": 403,
            "message": "Error(2028): Permission denied for resource (or it may not exist).",
            "status": "PERMISSION_DENIED",
        }
    },
)
UNAUTHENTICATED = Response(401, {"error": {"code": 401, "status": "UNAUTHENTICATED"}})
# One key for all tests: making one takes a while.
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class Group:
    """`members` are addresses, of people and of other groups."""

    name: str
    members: set[str] = field(default_factory=set)


class Google(OAuthServer):
    def __init__(self, ca: trustme.CA) -> None:
        super().__init__(ca)
        self.groups = {
            "platform@example.com": Group("groups/01platform", {"team-a@example.com"}),
            "team-a@example.com": Group("groups/02team", {"alice@example.com", "o'neil@example.com"}),
            "security@example.com": Group("groups/03security", {"bob@example.com", "guest@partner.example"}),
        }
        self.tells_missing = False
        self.person = "alice@example.com"
        self.grants: str | None = None
        self.account = "gateway@project.iam.gserviceaccount.com"
        self.tokens: dict[str, str] = {}
        self.assertions: list[dict[str, Any]] = []

    def write_key(self, path: Path, **changes: Any) -> Path:
        """The JSON key file that the console offers for download."""
        pem = _KEY.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        key = {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "key-1",
            "private_key": pem.decode(),
            "client_email": self.account,
            "token_uri": f"{self.url}/token",
        }
        path.write_text(json.dumps({name: value for name, value in (key | changes).items() if value is not None}))
        return path

    def answer(self, request: Request) -> Response:
        match request.path.split("/")[1:]:
            case ["o", "oauth2", "v2", "auth"] if request.query.get("response_type") == "code":
                return self.send_back(request.query, self.person)
            case ["token"] if request.method == "POST":
                return self._token(request)
            case ["v1", *steps] if PERSON_SCOPE in self.tokens.get(request.bearer, ""):
                return self._cloud_identity(request, steps)
            case ["admin", "directory", "v1", "groups", *steps] if self.tokens.get(request.bearer) == DIRECTORY_SCOPE:
                return self._directory([unquote(step) for step in steps])
        return UNAUTHENTICATED

    # --- tokens ---

    def _token(self, request: Request) -> Response:
        if request.form.get("grant_type") == "authorization_code":
            return self._exchange(request)
        try:
            public = RSAKey.import_key(_KEY.public_key())
            token = jwt.decode(request.form.get("assertion", ""), public, algorithms=["RS256"])
        except (JoseError, ValueError):
            return Response(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
        self.assertions.append({**token.claims, "kid": token.header["kid"]})
        if token.claims["aud"] != f"{self.url}/token" or token.claims["iss"] != self.account:
            return Response(400, {"error": "invalid_grant"})
        return self._issue(token.claims["scope"])

    def _exchange(self, request: Request) -> Response:
        code = self.codes.pop(request.form.get("code", ""), None)
        if (request.form.get("client_id"), request.form.get("client_secret")) != (self.client_id, self.client_secret):
            return Response(401, {"error": "invalid_client"})
        if code is None or not code.fits(request.form):
            return Response(400, {"error": "invalid_grant"})
        return self._issue(code.scope if self.grants is None else self.grants)

    def _issue(self, scope: str) -> Response:
        token = f"ya29.{secrets.token_hex(16)}"
        self.tokens[token] = scope
        return Response(200, {"access_token": token, "expires_in": 3599, "scope": scope, "token_type": "Bearer"})

    # --- groups ---

    def _cloud_identity(self, request: Request, steps: list[str]) -> Response:
        missing = Response(404, {"error": {"code": 404, "status": "NOT_FOUND"}}) if self.tells_missing else HIDDEN
        match steps:
            case ["groups:lookup"]:
                group = self.groups.get(request.query.get("groupKey.id", ""))
                return missing if group is None else Response(200, {"name": group.name})
            case ["groups", name, "memberships:checkTransitiveMembership"]:
                found = [address for address, group in self.groups.items() if group.name == f"groups/{name}"]
                member = _member(request.query.get("query", ""))
                if member is None:
                    return Response(400, {"error": {"code": 400, "status": "INVALID_ARGUMENT"}})
                if not found:
                    return missing
                return Response(200, {"hasMembership": True} if self._is_in(member, found[0]) else {})
        return missing

    def _directory(self, steps: list[str]) -> Response:
        not_found = Response(404, {"error": {"code": 404, "errors": [{"reason": "notFound"}]}})
        match steps:
            case [group, "hasMember", member] if group in self.groups:
                if member.partition("@")[2] != group.partition("@")[2]:
                    return Response(400, {"error": {"code": 400, "message": "Invalid Input: memberKey"}})
                return Response(200, {"isMember": self._is_in(member, group)})
            case [group, "members", member] if group in self.groups and member in self.groups[group].members:
                return Response(200, {"email": member, "role": "MEMBER", "type": "USER", "status": "ACTIVE"})
        return not_found

    def _is_in(self, member: str, group: str) -> bool:
        members = self.groups[group].members
        return member in members or any(self._is_in(member, nested) for nested in members if nested in self.groups)


def _member(query: str) -> str | None:
    """The address in ``member_key_id == '...'``, read as the expression language reads it."""
    before, equals, quoted = query.partition(" == ")
    if before != "member_key_id" or not equals or len(quoted) < 2 or quoted[0] != "'" or quoted[-1] != "'":
        return None
    inside = quoted[1:-1].replace("\\'", "\0")
    return None if "'" in inside or "\\" in inside else inside.replace("\0", "'")
