"""The ``auth-provider`` of a kubeconfig: oidc is obeyed as by client-go, everything else is refused.

The issuer and the API server are real servers over TLS; the requests go through a client.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from ostiary.client.connection import Connection
from ostiary.client.oidc_auth_provider import TokenError, usable_until
from ostiary.errors import BackingOff, ConfigurationError, CredentialError
from ostiary_gateway.testing import FakeClock
from tests.support.apiserver import ApiServer
from tests.support.http_server import Request, Response
from tests.support.oauth_server import OAuthServer

Connect = Callable[..., Connection]
REFRESH = "refresh-c4n4ry"


def jwt(clock: FakeClock, *, lifetime: timedelta, number: int = 1, **claims: Any) -> str:
    payload = {"sub": "alice", "n": number, "exp": int((clock.now() + lifetime).timestamp()), **claims}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, payload)]
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (*parts, b"c4n4ry-signature"))


class TokenIssuer(OAuthServer):
    """Exchanges refresh tokens. `takes_basic` tells whether a client may prove itself in the header."""

    client_id, client_secret = "kube+client", "se/cret c4n4ry"

    def __init__(self, ca: trustme.CA, clock: FakeClock) -> None:
        super().__init__(ca)
        self.clock = clock
        self.takes_basic = True
        self.rotates = True
        self.good = {REFRESH}
        self.answers: dict[str, Any] = {}
        self.metadata: dict[str, Any] = {}
        self.given = 0

    def answer(self, request: Request) -> Response:
        if request.path == "/.well-known/openid-configuration":
            return Response(body={"token_endpoint": f"{self.url}/token", **self.metadata})
        basic = base64.b64encode(b"kube%2Bclient:se%2Fcret+c4n4ry").decode()
        proven = (self.takes_basic and request.headers.get("authorization") == f"Basic {basic}") or (
            (request.form.get("client_id"), request.form.get("client_secret")) == (self.client_id, self.client_secret)
        )
        if not proven:
            return Response(401, {"error": "invalid_client"})
        if request.form.get("grant_type") != "refresh_token" or request.form.get("refresh_token") not in self.good:
            return Response(
                400, {"error": "invalid_grant", "error_description": f"{request.form.get('refresh_token')}"}
            )
        self.given += 1
        tokens: dict[str, Any] = {
            "access_token": "access",
            "id_token": jwt(self.clock, lifetime=timedelta(minutes=5), number=self.given + 1),
        }
        if self.rotates:
            newer = f"refresh-{self.given}-c4n4ry"
            self.good = {newer}
            tokens["refresh_token"] = newer
        return Response(body={name: value for name, value in {**tokens, **self.answers}.items() if value is not None})


@pytest.fixture
def issuer(ca: trustme.CA, clock: FakeClock) -> Iterator[TokenIssuer]:
    with TokenIssuer(ca, clock).running() as server:
        yield server


@pytest.fixture
def provider(issuer: TokenIssuer, clock: FakeClock, ca_data: str) -> dict[str, str]:
    return {
        "idp-issuer-url": issuer.url + "/",
        "idp-certificate-authority-data": ca_data,
        "client-id": issuer.client_id,
        "client-secret": issuer.client_secret,
        "id-token": jwt(clock, lifetime=timedelta(minutes=5)),
        "refresh-token": REFRESH,
    }


def user(config: dict[str, str] | None, name: str = "oidc", **more: Any) -> dict[str, Any]:
    return {"auth-provider": {"name": name, **({} if config is None else {"config": config})}, **more}


def bearers(api: ApiServer) -> list[str]:
    return [(request.headers.get("Authorization", "")).removeprefix("Bearer ") for request in api.requests]


# --- the id-token ---


def test_the_id_token_is_sent_and_nobody_is_asked_while_it_is_good(
    api: ApiServer, connect_to: Connect, provider: dict[str, str], issuer: TokenIssuer
) -> None:
    """E8."""
    with connect_to(user=user(provider)).httpx() as client:
        assert [client.get("/version").status_code for _ in range(3)] == [200] * 3
    assert bearers(api) == [provider["id-token"]] * 3
    assert issuer.requests == []


def test_an_expired_id_token_is_refreshed_once_and_the_new_tokens_are_in_the_kubeconfig(
    api: ApiServer, connect_to: Connect, provider: dict[str, str], issuer: TokenIssuer, clock: FakeClock, tmp_path: Path
) -> None:
    """E8."""
    connection = connect_to(user=user(provider))
    path = tmp_path / "kubeconfig"
    before = path.read_text()
    path.chmod(0o600)
    clock.advance(minutes=4, seconds=51)
    with connection.httpx() as client, ThreadPoolExecutor(8) as pool:
        assert {reply.status_code for reply in pool.map(client.get, ["/version"] * 8)} == {200}
    stored = json.loads(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert set(bearers(api)) == {stored["id-token"]} != {provider["id-token"]}
    assert (stored["refresh-token"], issuer.given) == ("refresh-1-c4n4ry", 1)
    changed = [line for line in path.read_text().splitlines() if line not in before.splitlines()]
    assert len(changed) == 2, "every other byte stays as it was"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [name.name for name in tmp_path.iterdir() if name.name.startswith("kubeconfig")] == ["kubeconfig"]


def test_the_file_that_replaces_the_kubeconfig_is_private_while_it_is_written(
    connect_to: Connect, provider: dict[str, str], clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect_to(user=user(provider))
    (tmp_path / "kubeconfig").chmod(0o644)
    written: list[tuple[bool, int]] = []

    def chmod(path: str, mode: int) -> None:
        written.append(("refresh-1-c4n4ry" in Path(path).read_text(), stat.S_IMODE(os.stat(path).st_mode)))

    monkeypatch.setattr(os, "chmod", chmod)
    clock.advance(minutes=5)
    umask = os.umask(0)
    try:
        with connection.httpx() as client:
            client.get("/version")
    finally:
        os.umask(umask)
    assert written == [(True, 0o600)]


def test_a_comment_in_a_yaml_kubeconfig_survives_a_refresh_and_a_missing_id_token_is_added(
    api: ApiServer, connect_to: Connect, provider: dict[str, str], tmp_path: Path
) -> None:
    del provider["id-token"]
    connection = connect_to(user=user(provider))
    path = tmp_path / "kubeconfig"
    path.write_text("# mine\n" + path.read_text().replace("{", "{ # kept\n", 1))
    with connection.httpx() as client:
        assert client.get("/version").status_code == 200
    assert path.read_text().startswith("# mine\n{ # kept\n")
    assert '"id-token": "ey' in path.read_text()


def test_a_refresh_token_that_the_issuer_does_not_replace_stays(
    connect_to: Connect, provider: dict[str, str], issuer: TokenIssuer, clock: FakeClock, tmp_path: Path
) -> None:
    issuer.rotates = False
    with connect_to(user=user(provider)).httpx() as client:
        for _ in range(2):
            clock.advance(minutes=5)
            assert client.get("/version").status_code == 200
    assert issuer.given == 2
    assert json.loads((tmp_path / "kubeconfig").read_text())["users"][0]["user"]["auth-provider"]["config"][
        "refresh-token"
    ] == (REFRESH)


def test_a_client_that_the_issuer_does_not_know_by_the_header_proves_itself_in_the_form(
    connect_to: Connect, provider: dict[str, str], issuer: TokenIssuer, clock: FakeClock
) -> None:
    issuer.takes_basic = False
    clock.advance(minutes=5)
    with connect_to(user=user(provider)).httpx() as client:
        assert client.get("/version").status_code == 200
    assert [("client_id" in request.form) for request in issuer.requests if request.target == "/token"] == [False, True]


def test_tokens_that_another_program_wrote_are_used_and_the_issuer_is_not_asked(
    api: ApiServer, connect_to: Connect, provider: dict[str, str], issuer: TokenIssuer, clock: FakeClock, tmp_path: Path
) -> None:
    connection = connect_to(user=user(provider))
    clock.advance(minutes=5)
    newer = jwt(clock, lifetime=timedelta(minutes=5), number=77)
    path = tmp_path / "kubeconfig"
    path.write_text(path.read_text().replace(provider["id-token"], newer))
    with connection.httpx() as client:
        client.get("/version")
    assert bearers(api) == [newer]
    assert issuer.requests == []


@pytest.mark.parametrize("spoil", ["lock", "gone", "utf-16", "user gone"])
def test_a_kubeconfig_that_cannot_be_written_costs_a_warning_and_not_the_request(
    api: ApiServer,
    connect_to: Connect,
    provider: dict[str, str],
    issuer: TokenIssuer,
    clock: FakeClock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    spoil: str,
) -> None:
    connection = connect_to(user=user(provider))
    clock.advance(minutes=5)
    path = tmp_path / "kubeconfig"
    if spoil == "lock":
        (tmp_path / "kubeconfig.lock").touch()
    elif spoil == "utf-16":
        path.write_bytes(path.read_text().encode("utf-16"))
    elif spoil == "user gone":
        path.write_text("apiVersion: v1\n")
    before = path.read_bytes()
    if spoil == "gone":
        path.unlink()
    with connection.httpx() as client:
        assert client.get("/version").status_code == 200
        clock.advance(minutes=5)
        assert client.get("/version").status_code == 200, "the new refresh token is kept in memory"
    assert issuer.given == 2
    assert "cannot be written" in caplog.text
    assert "c4n4ry" not in caplog.text
    assert spoil == "gone" or path.read_bytes() == before


def test_a_401_does_not_ask_the_issuer(
    api: ApiServer, connect_to: Connect, provider: dict[str, str], issuer: TokenIssuer
) -> None:
    api.rules.tokens = {"somebody-else"}
    with connect_to(user=user(provider)).httpx() as client:
        assert client.get("/version").status_code == 401
    assert issuer.requests == []


# --- beside other credentials, as in client-go ---


def test_a_static_token_or_username_is_sent_in_place_of_the_id_token_and_the_log_says_so(
    api: ApiServer, connect_to: Connect, provider: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    for static, sent in (({"token": "static"}, "Bearer static"), ({"username": "bob"}, "Basic Ym9iOg==")):
        with connect_to(user=user(provider, **static)).httpx() as client:
            client.get("/version")
        assert api.requests[-1].headers.get("Authorization") == sent
    assert caplog.text.count("auth-provider in the kubeconfig is not used") == 2


def test_settings_of_the_provider_that_take_no_effect_are_told_by_name(
    connect_to: Connect, provider: dict[str, str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("c4n4ry")
    more = {"extra-scopes": "groups-c4n4ry", "idp-certificate-authority": str(authority), "refesh-token": "c4n4ry"}
    connect_to(user=user({**provider, **more}))
    told = [name for name in {**provider, **more} if f": {name} of the auth-provider takes no effect" in caplog.text]
    assert sorted(told) == ["extra-scopes", "idp-certificate-authority", "refesh-token"]
    assert "c4n4ry" not in caplog.text


def test_a_client_certificate_goes_along_with_the_id_token(
    api: ApiServer,
    connect_to: Connect,
    provider: dict[str, str],
    client_certificate: Callable[[str], tuple[str, str]],
) -> None:
    certificate, key = (base64.b64encode(pem.encode()).decode() for pem in client_certificate("alice"))
    both = user(provider, **{"client-certificate-data": certificate, "client-key-data": key})
    with connect_to(user=both).httpx() as client:
        client.get("/version")
    assert (bearers(api), api.requests[0].certificate) == ([provider["id-token"]], "alice")


# --- refusals ---


@pytest.mark.parametrize(
    ("name", "advice"),
    [("gcp", "gke-gcloud-auth-plugin"), ("azure", "kubelogin"), ("openstack", "oidc"), ("", "oidc"), ("OIDC", "oidc")],
)
@pytest.mark.parametrize("more", [{}, {"token": "static"}], ids=["alone", "beside a token"])
def test_any_other_auth_provider_is_refused_with_where_to_go_and_nothing_is_sent(
    api: ApiServer, connect_to: Connect, name: str, advice: str, more: dict[str, str]
) -> None:
    """E7."""
    with pytest.raises(ConfigurationError) as refused:
        connect_to(user=user({"access-token": "c4n4ry"}, name, **more))
    assert advice in (refused.value.hint or "")
    assert refused.value.code == "auth-provider-unusable"
    assert "c4n4ry" not in str(refused.value)
    assert api.requests == []


@pytest.mark.parametrize("missing", ["idp-issuer-url", "client-id"])
def test_an_oidc_provider_without_an_issuer_or_a_client_is_refused(
    connect_to: Connect, provider: dict[str, str], missing: str
) -> None:
    del provider[missing]
    with pytest.raises(ConfigurationError, match=missing):
        connect_to(user=user(provider))


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"idp-certificate-authority-data": "%"}, "not base64"),
        ({"idp-certificate-authority-data": "", "idp-certificate-authority": "/none"}, "cannot be read"),
    ],
)
def test_an_issuers_authority_that_cannot_be_read_is_refused_at_the_start(
    connect_to: Connect, provider: dict[str, str], wrong: dict[str, str], cause: str
) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        connect_to(user=user({**provider, **wrong}))


def spoil_metadata(issuer: TokenIssuer) -> None:
    issuer.metadata = {"token_endpoint": issuer.url.replace("https", "http")}


FAILURES: dict[str, tuple[Callable[[TokenIssuer], None], str]] = {
    "no metadata": (lambda issuer: issuer.failures.update({"/.well": Response(404)}), "status 404"),
    "no endpoint": (lambda issuer: issuer.metadata.update(token_endpoint=None), "no token_endpoint"),
    "a plain endpoint": (spoil_metadata, "not https"),
    "refused": (lambda issuer: issuer.good.clear(), "status 400 (invalid_grant)"),
    "no id-token": (lambda issuer: issuer.answers.update(id_token=None), "no id_token"),
    "no access token": (lambda issuer: issuer.answers.update(access_token=None), "no access_token"),
    "no JSON": (lambda issuer: issuer.failures.update({"/token": Response(body=b"<html>")}), "no access_token"),
}


@pytest.mark.parametrize(("spoil", "cause"), FAILURES.values(), ids=FAILURES)
def test_a_refresh_that_fails_is_the_callers_error_nothing_is_sent_and_no_token_is_told(
    api: ApiServer,
    connect_to: Connect,
    provider: dict[str, str],
    issuer: TokenIssuer,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[TokenIssuer], None],
    cause: str,
) -> None:
    spoil(issuer)
    clock.advance(minutes=5)
    with connect_to(user=user(provider)).httpx() as client:
        with pytest.raises(CredentialError) as failure:
            client.get("/version")
        asked = len(issuer.requests)
        with pytest.raises(BackingOff):
            client.get("/version")
    assert cause in (failure.value.cause or "")
    assert failure.value.code == "oidc-token-unavailable"
    assert "c4n4ry" not in str(failure.value) + caplog.text
    assert (api.requests, len(issuer.requests)) == ([], asked)


def test_an_issuer_that_another_authority_vouches_for_is_not_trusted(
    api: ApiServer, connect_to: Connect, provider: dict[str, str], issuer: TokenIssuer, clock: FakeClock
) -> None:
    provider["idp-certificate-authority-data"] = base64.b64encode(trustme.CA().cert_pem.bytes()).decode()
    clock.advance(minutes=5)
    with connect_to(user=user(provider)).httpx() as client, pytest.raises(CredentialError, match="cannot be reached"):
        client.get("/version")
    assert (api.requests, issuer.requests) == ([], [])


@pytest.mark.parametrize("id_token", ["c4n4ry", "a.c4n4ry.c", "a.%.c", "a.W10.c", "a.b=.c"])
def test_an_id_token_that_is_no_jwt_is_refused_and_not_quoted(
    connect_to: Connect, provider: dict[str, str], id_token: str
) -> None:
    connection = connect_to(user=user({**provider, "id-token": id_token}))
    with connection.httpx() as client, pytest.raises(CredentialError, match="not a JWT") as failure:
        client.get("/version")
    assert id_token not in str(failure.value)


def test_without_a_refresh_token_an_expired_id_token_is_an_error(
    connect_to: Connect, provider: dict[str, str], clock: FakeClock, issuer: TokenIssuer
) -> None:
    del provider["refresh-token"]
    clock.advance(minutes=5)
    with connect_to(user=user(provider)).httpx() as client, pytest.raises(CredentialError, match="no refresh-token"):
        client.get("/version")
    assert issuer.requests == []


# --- the claims ---


@pytest.mark.parametrize("exp", [1_900_000_000, 1_900_000_000.7, "1900000000", "1.9e9"])
def test_the_expiry_may_be_written_in_any_way_that_go_reads(clock: FakeClock, exp: object) -> None:
    until = usable_until(jwt(clock, lifetime=timedelta(0), exp=exp))
    assert until.timestamp() == 1_900_000_000 - 10


@pytest.mark.parametrize("exp", [None, 1e300, -1e300, 10**30])
def test_an_expiry_that_no_calendar_holds_is_long_ago_or_far_away(clock: FakeClock, exp: object) -> None:
    until = usable_until(jwt(clock, lifetime=timedelta(0), exp=exp))
    assert (until > clock.now()) == (isinstance(exp, (int, float)) and exp > 0)


@given(st.text(max_size=60))
def test_whatever_stands_in_the_place_of_an_id_token_has_a_time_or_is_refused(text: str) -> None:
    try:
        until = usable_until(text)
    except TokenError:
        return
    assert until.tzinfo is not None


def test_the_file_that_a_link_leads_to_is_rewritten_and_the_link_stays(
    connect_to: Connect, provider: dict[str, str], clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect_to(user=user(provider))
    real = tmp_path / "elsewhere"
    os.replace(tmp_path / "kubeconfig", real)
    (tmp_path / "kubeconfig").symlink_to(real)
    clock.advance(minutes=5)
    with caplog.at_level(logging.WARNING), connection.httpx() as client:
        client.get("/version")
    assert (tmp_path / "kubeconfig").is_symlink()
    assert "refresh-1-c4n4ry" in real.read_text()
