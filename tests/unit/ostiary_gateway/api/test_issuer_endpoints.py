"""Discovery and the key set, fetched over TLS from a worker, and what they verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme
from joserfc import jwt
from joserfc.errors import BadSignatureError
from joserfc.jwk import KeySet

from ostiary_gateway.issuer.keys import SigningKey
from tests.support.gateway import Gateway, Site

AUDIENCE = "https://prod.example"
EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
    "requested_token_type": "urn:ietf:params:oauth:token-type:jwt",
}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path / "site", trustme.CA())
    site.users("alice")
    (site.folder / "key.pem").write_bytes(SigningKey.generate().pem())
    return site


def issuing(url: str = "https://gateway.example/issuer", **more: Any) -> dict[str, Any]:
    return {"issuer": {"url": url, "audiences": [AUDIENCE], "keys": {"files": ["key.pem"]}, **more}}


def exchange(gateway: Gateway, token: str, *, query: str = "", **changes: str) -> Any:
    with gateway.http() as http:
        data = {**EXCHANGE, "subject_token": token, "audience": AUDIENCE, **changes}
        return http.post(f"/auth/token{query}", data={key: value for key, value in data.items() if value})


def test_what_discovery_names_verifies_a_jwt(site: Site) -> None:
    with site.in_process(**issuing()) as gateway:
        found = gateway.get("/issuer/.well-known/openid-configuration")
        document = found.json()
        assert document["issuer"] == "https://gateway.example/issuer"
        assert document["id_token_signing_alg_values_supported"] == ["ES256"]
        assert "max-age=300" in found.headers["cache-control"]
        path = document["jwks_uri"].removeprefix("https://gateway.example")
        published = gateway.get(path)
        # kube-apiserver asks for a key that it does not know only when it may not keep the set any longer.
        assert published.headers["cache-control"] == "public, max-age=5"
        keys = KeySet.import_key_set(published.json())
        answer = exchange(gateway, gateway.login("alice").token)
        assert answer.status_code == 200
        assert (answer.json()["token_type"], answer.json()["issued_token_type"]) == (
            "Bearer",
            EXCHANGE["requested_token_type"],
        )
        assert answer.headers["cache-control"] == "no-store"
        token = jwt.decode(answer.json()["access_token"], keys, algorithms=["ES256"])
        claims = jwt.JWTClaimsRegistry(
            iss={"essential": True, "value": document["issuer"]}, aud={"essential": True, "value": AUDIENCE}
        )
        claims.validate(token.claims)
        assert token.claims["username"] == "alice"
        head, body, signature = answer.json()["access_token"].split(".")
        with pytest.raises(BadSignatureError):
            jwt.decode(f"{head}.{body[:-2]}AA.{signature}", keys, algorithms=["ES256"])


def test_without_a_path_it_lies_at_the_root_and_other_paths_are_not_ours(site: Site) -> None:
    with site.in_process(**issuing("https://gateway.example")) as gateway:
        assert gateway.get("/.well-known/openid-configuration").status_code == 200
        assert gateway.get("/.well-known/jwks.json?x=1").status_code == 200
        assert gateway.get("/.well-known/other").status_code == 404
        with gateway.http() as http:
            assert http.post("/.well-known/jwks.json").status_code == 405
            assert http.head("/.well-known/jwks.json").status_code == 200


def test_without_an_issuer_there_is_nothing(site: Site) -> None:
    with site.in_process() as gateway:
        assert gateway.get("/.well-known/openid-configuration").status_code == 401
        refused = exchange(gateway, gateway.login("alice").token)
        assert (refused.status_code, refused.json()) == (400, {"error": "invalid_target"})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"audience": "https://other.example"}, "invalid_target"),
        ({"audience": ""}, "invalid_target"),
        ({"subject_token": "ost_unknown"}, "invalid_grant"),
        ({"subject_token": ""}, "invalid_request"),
        ({"grant_type": "password"}, "unsupported_grant_type"),
        ({"scope": "get pods -n shop"}, "invalid_scope"),
        ({"actor": "agent"}, "invalid_scope"),
    ],
    ids=str,
)
def test_a_refused_exchange_says_which_part_was_wrong(site: Site, changes: dict[str, str], error: str) -> None:
    with site.in_process(**issuing()) as gateway:
        refused = exchange(gateway, gateway.login("alice").token, **changes)
    assert (refused.status_code, refused.json()["error"]) == (400, error)


def test_a_scope_in_the_address_gets_no_jwt(site: Site) -> None:
    with site.in_process(**issuing()) as gateway:
        refused = exchange(gateway, gateway.login("alice").token, query="?scope=get+pods+-n+shop")
    assert (refused.status_code, refused.json()["error"]) == (400, "invalid_scope")


def test_a_key_file_that_is_spoiled_while_it_runs_is_told_and_what_was_published_stays(site: Site) -> None:
    with site.in_process(**issuing()) as gateway:
        before = gateway.get("/issuer/.well-known/jwks.json").json()
        (site.folder / "key.pem").write_text("spoiled")
        assert gateway.get("/issuer/.well-known/jwks.json").json() == before
