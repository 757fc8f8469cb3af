"""A small OpenID Connect issuer that does as it should, or lies as a test tells it to.

    issuer.claims["aud"] = "somebody-else"; issuer.header["alg"] = "none"; issuer.metadata["token_endpoint"] = ...

A value of `ABSENT` leaves the field out. Keys are rotated with `rotate`; what fails, fails by `failures` of its base.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote, unquote_plus, urlsplit

import trustme
from httpx import QueryParams
from joserfc.jwk import ECKey, KeyParameters, RSAKey
from joserfc.jws import JWSRegistry

from ostiary.core.clock import Clock
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from tests.support.http_server import Request, Response
from tests.support.oauth_server import Code, OAuthServer


class _Absent:
    def __repr__(self) -> str:
        # Tests with it in their names have the same name in every process.
        return "ABSENT"


ABSENT = _Absent()
LIFETIME = 300
Key = ECKey | RSAKey


def ec_key(kid: str = "ec-1") -> ECKey:
    return ECKey.generate_key("P-256", KeyParameters(kid=kid))


@cache
def rsa_key(kid: str = "rsa-1") -> RSAKey:
    """Made once: it takes long."""
    return RSAKey.generate_key(2048, KeyParameters(kid=kid))


class Issuer(OAuthServer):
    client_id = "gate:way"
    client_secret = "client+secret/canary%"

    def __init__(self, ca: trustme.CA, clock: Clock) -> None:
        super().__init__(ca)
        self.clock = clock
        self.person: dict[str, Any] = {"sub": "7f3a", "email": "alice@example.com", "email_verified": True}
        self.claims: dict[str, Any] = {}
        self.header: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.user_info: dict[str, Any] = {}
        self.returns: dict[str, Any] = {}
        self.tokens: dict[str, Any] = {}
        self.key: Key = ec_key()
        self.published: list[Any] = [public(self.key)]
        self._nonces: dict[str, str] = {}
        # What its name has after the host: a realm, a tenant, or a slash.
        self.path = ""
        self.pushed: dict[str, dict[str, str]] = {}
        self.gives_refresh_tokens = False
        self.refresh_tokens: set[str] = set()
        self._refreshed = 0

    @property
    def name(self) -> str:
        """As it writes itself."""
        return self.url + self.path

    def offer_pushed_requests(self) -> None:
        self.metadata["pushed_authorization_request_endpoint"] = f"{self.url}/par"

    def rotate(self, key: Key) -> None:
        self.key, self.published = key, [public(key)]

    def visit(self, redirect: Redirect) -> LoginRequest:
        """What a browser does: it opens the page, where a person signs in at once, and comes back."""
        query = QueryParams(urlsplit(redirect.url).query)
        request = self._request_of(query)
        back = urlsplit(self._authorize(query).headers["Location"])
        pairs = tuple(parse_qsl(back.query, keep_blank_values=True))
        by_post = request.get("response_mode") == "form_post"
        return LoginRequest(
            "POST" if by_post else "GET",
            back.path,
            query=() if by_post else pairs,
            form=pairs if by_post else (),
            callback_url=back._replace(query="").geturl(),
            remembered=redirect.remember,
        )

    def answer(self, request: Request) -> Response:
        match request.path.removeprefix(self.path.rstrip("/")):
            case "/.well-known/openid-configuration":
                return Response(body=_changed(self._true_metadata(), self.metadata))
            case "/keys":
                return Response(body={"keys": self.published})
            case "/authorize":
                return self._authorize(request.query)
            case "/token":
                return self._token(request)
            case "/par" if request.method == "POST":
                return self._push(request)
            case "/userinfo" if request.bearer == "access-canary":
                return Response(body=_changed(self.person, self.user_info))
        return Response(404)

    def id_token(self, nonce: str | None = None, access_token: str | None = None) -> str:
        now = int(self.clock.now().timestamp())
        true = {"iss": self.name, "aud": self.client_id, "exp": now + LIFETIME, "iat": now, **self.person}
        if nonce is not None:
            true["nonce"] = nonce
        if access_token is not None:
            digest = hashlib.sha256(access_token.encode()).digest()
            true["at_hash"] = base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")
        return token(_changed(true, self.claims), self.key, **self.header)

    def _true_metadata(self) -> dict[str, Any]:
        base = self.name.rstrip("/")
        return {
            "issuer": self.name,
            "authorization_endpoint": f"{base}/authorize?tenant=a+b",
            "token_endpoint": f"{base}/token",
            "jwks_uri": f"{base}/keys",
            "userinfo_endpoint": f"{base}/userinfo",
        }

    def _authorize(self, query: Mapping[str, str]) -> Response:
        assert query["tenant"] == "a b", "the issuer's own parameters stay"
        request = self._request_of(query)
        self.pushed.pop(query.get("request_uri", ""), None)
        before = set(self.codes)
        response = self.send_back(request, "alice")
        for code in set(self.codes) - before:
            self._nonces[code] = request["nonce"]
        more = "".join(f"&{name}={quote(value, safe='')}" for name, value in self.returns.items())
        return Response(302, headers={"Location": response.headers["Location"] + more})

    def _request_of(self, query: Mapping[str, str]) -> Mapping[str, str]:
        """What is asked for: in the address, or pushed beforehand, and then nowhere else (RFC 9101, 6.3)."""
        uri = query.get("request_uri")
        if uri is None:
            return query
        assert set(query) == {"tenant", "client_id", "request_uri"}, "nothing of a pushed request is in the address"
        assert self.pushed[uri]["client_id"] == query["client_id"]
        return self.pushed[uri]

    def _push(self, request: Request) -> Response:
        name, secret = self._client(request)
        if (name, secret) not in ((self.client_id, self.client_secret), (self.client_id, None)):
            return Response(401, {"error": "invalid_client"})
        uri = f"urn:ietf:params:oauth:request_uri:{len(self.pushed)}-{secrets.token_hex(8)}"
        self.pushed[uri] = {key: value for key, value in request.form.items() if key != "client_secret"}
        return Response(201, {"request_uri": uri, "expires_in": 60})

    def _token(self, request: Request) -> Response:
        name, secret = self._client(request)
        if (name, secret) not in ((self.client_id, self.client_secret), (self.client_id, None)):
            return Response(401, {"error": "invalid_client"})
        if request.form.get("grant_type") == "refresh_token":
            return self._refresh(request.form["refresh_token"])
        code = request.form.get("code", "")
        known: Code | None = self.codes.pop(code, None)
        if known is None or not known.fits({**request.form, "client_id": name}):
            return Response(400, {"error": "invalid_grant"})
        true = {"token_type": "Bearer", "access_token": "access-canary"}
        true["id_token"] = self.id_token(self._nonces[code], "access-canary")
        return Response(body=_changed({**true, **self._new_refresh_token()}, self.tokens))

    def _refresh(self, refresh_token: str) -> Response:
        """A refresh token is good once; the second use of one ends them all, as rotating issuers have it."""
        if refresh_token not in self.refresh_tokens:
            self.refresh_tokens.clear()
            return Response(400, {"error": "invalid_grant"})
        self.refresh_tokens.remove(refresh_token)
        true = {"token_type": "Bearer", "access_token": "access-canary"}
        true["id_token"] = self.id_token(None, "access-canary")
        return Response(body=_changed({**true, **self._new_refresh_token()}, self.tokens))

    def _new_refresh_token(self) -> dict[str, str]:
        if not self.gives_refresh_tokens:
            return {}
        self._refreshed += 1
        self.refresh_tokens.add(f"refresh-canary-{self._refreshed}")
        return {"refresh_token": f"refresh-canary-{self._refreshed}"}

    def _client(self, request: Request) -> tuple[str, str | None]:
        scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
        if scheme != "Basic":
            return request.form.get("client_id", ""), request.form.get("client_secret")
        name, _, secret = base64.b64decode(encoded).decode().partition(":")
        return unquote_plus(name), unquote_plus(secret)


def public(key: Key, **more: Any) -> dict[str, Any]:
    return {**key.as_dict(private=False), **more}


def token(claims: dict[str, Any], key: Key, **header: Any) -> str:
    """A token as its maker wants it; with an ``alg`` that needs no key of ours, a forgery."""
    header = _changed({"alg": "ES256" if isinstance(key, ECKey) else "RS256", "kid": key.kid}, header)
    signed = b".".join(_encoded(json.dumps(part).encode()) for part in (header, claims))
    return b".".join((signed, _encoded(_signature(header["alg"], signed, key)))).decode()


def _signature(algorithm: str, signed: bytes, key: Key) -> bytes:
    if algorithm == "none":
        return b""
    if algorithm == "HS256":
        # With the public key, as though it were a secret.
        return hmac.digest(key.as_pem(private=False), signed, "sha256")
    return JWSRegistry.algorithms[algorithm].sign(signed, key)


def _encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def _changed(true: dict[str, Any], lies: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in {**true, **lies}.items() if value is not ABSENT}
