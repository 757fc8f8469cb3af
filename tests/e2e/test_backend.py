"""APIs that check tokens and policy themselves, with the real frameworks, real servers and a real gateway, over TLS.

The design document lets a plugin's own server do it: "a library ... for the necessary authentication, authorization,
caching, and selector evaluation". S68 says what has to hold wherever the decision is made.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from ostiary.errors import ConfigurationError
from ostiary_gateway.issuer.keys import SigningKey
from ostiary_gateway.middleware import Access, AccessRefused, SyncGatekeeper
from ostiary_gateway.middleware.asgi import GatekeeperMiddleware
from ostiary_gateway.wire.audit_policy import DECISION, UPSTREAM
from tests.support.backend import CALLER, WEBHOOKS, ServedApi, asgi_server, prepare, write_backend, wsgi_server
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.ports import free_port
from tests.support.waiting import until

AUDIENCE = "https://shop.example"
TEMPLATES: dict[str, Any] = {
    "type": "http",
    "templates": ["/v1/{namespace}/{resource}", "/v1/{namespace}/{resource}/{name}"],
    "modifiers": [{"suffix": "/restart", "method": "POST", "modifier": "Restart"}],
}
CARTS = {"apiGroups": [""], "resources": ["carts"], "verbs": ["get", "list"]}
RESTART = {"apiGroups": [""], "resources": ["carts"], "verbs": ["restart"]}
HEALTH = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
SEEN = [{"metadata": {"name": "c1", "labels": {"size": "7"}}}, {"metadata": {"name": "c2", "labels": {"size": "30"}}}]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    site = Site(tmp_path_factory.mktemp("backend"), trustme.CA())
    site.users("alice", "bob", "eve")
    prepare(site)
    site.policy(
        role("shop", CARTS, RESTART, User="alice"), role("shop", CARTS, User="eve"), role("", HEALTH, User="bob")
    )
    (site.folder / "key.pem").write_bytes(SigningKey.generate().pem())
    port = free_port()
    sections: dict[str, Any] = {
        "listen": {"address": f"127.0.0.1:{port}"},
        "externalURL": f"https://localhost:{port}",
        "issuer": {"audiences": [AUDIENCE], "keys": {"files": ["key.pem"]}},
        "webhooks": WEBHOOKS,
    }
    with site.serving(**sections) as served:
        yield served


def narrowed(gateway: ServedGateway, token: str, scope: str) -> str:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "scope": scope,
    }
    with gateway.http() as http:
        return str(http.post("/auth/token", data=form).raise_for_status().json()["access_token"])


def jwt_for(gateway: ServedGateway, token: str) -> str:
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "requested_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "audience": AUDIENCE,
    }
    with gateway.http() as http:
        return str(http.post("/auth/token", data=form).raise_for_status().json()["access_token"])


def sign_out(gateway: ServedGateway, token: str) -> None:
    with gateway.http(token) as http:
        assert http.post("/auth/logout").status_code == 204


# --- the applications, one for each framework ---


async def carts(request: Request) -> JSONResponse:
    access: Access = request.scope["ostiary"]
    return JSONResponse({"user": request.user.username, "carts": access.select(SEEN)})


async def cart(request: Request) -> JSONResponse:
    access: Access = request.scope["ostiary"]
    if request.path_params["name"] != "c1":
        raise access.missing()
    return JSONResponse({"user": request.user.username, "groups": list(request.user.groups)})


async def restart(request: Request) -> JSONResponse:
    access: Access = request.scope["ostiary"]
    await access.require("restart", resource="carts", namespace="shop", name=request.path_params["name"])
    return JSONResponse({"user": request.user.username})


async def metrics(request: Request) -> JSONResponse:
    return JSONResponse({"user": request.user.username})


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"has_user": "user" in request.scope})


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(websocket.scope["user"].username)
    await websocket.close()


def starlette_app() -> Starlette:
    return Starlette(
        routes=[
            Route("/v1/{namespace}/carts", carts),
            Route("/v1/{namespace}/carts/{name}", cart, methods=["GET", "DELETE"]),
            Route("/v1/{namespace}/carts/{name}/restart", restart, methods=["POST"]),
            Route("/metrics", metrics),
            Route("/healthz", health),
            WebSocketRoute("/v1/{namespace}/carts", socket),
        ]
    )


def serve_starlette(gateway: ServedGateway, /, **sections: Any) -> AbstractContextManager[ServedApi]:
    app = starlette_app()
    app.add_middleware(GatekeeperMiddleware, gatekeeper=write_backend(gateway, attributes=TEMPLATES, **sections))
    return asgi_server(gateway.site, app)


@pytest.fixture(scope="module")
def api(gateway: ServedGateway) -> Iterator[ServedApi]:
    with serve_starlette(gateway, openPaths=["/healthz"], jwt={"audiences": [AUDIENCE]}) as served:
        yield served


class TestEveryFramework:
    """S68. One line each; the view knows the user, and what it asks besides is answered like the request itself."""

    @staticmethod
    def starlette(gateway: ServedGateway) -> AbstractContextManager[ServedApi]:
        return serve_starlette(gateway)

    @staticmethod
    def fastapi(gateway: ServedGateway) -> AbstractContextManager[ServedApi]:
        from fastapi import FastAPI

        app = FastAPI()

        @app.get("/v1/{namespace}/carts/{name}")
        def cart(namespace: str, name: str, request: Request) -> dict[str, Any]:
            return {"user": request.scope["user"].username, "groups": request.scope["user"].groups}

        app.post("/v1/{namespace}/carts/{name}/restart", response_model=None)(restart)
        backend = write_backend(gateway, attributes=TEMPLATES)
        app.add_middleware(GatekeeperMiddleware, gatekeeper=backend)
        return asgi_server(gateway.site, app)

    @staticmethod
    @contextmanager
    def flask(gateway: ServedGateway) -> Iterator[ServedApi]:
        import flask

        from ostiary_gateway.middleware.wsgi import GatekeeperMiddleware

        app = flask.Flask("shop")

        @app.get("/v1/<namespace>/carts/<name>")
        def cart(namespace: str, name: str) -> dict[str, Any]:
            user = flask.request.environ["ostiary.user"]
            return {"user": user.username, "groups": user.groups}

        @app.post("/v1/<namespace>/carts/<name>/restart")
        def restart(namespace: str, name: str) -> dict[str, Any]:
            flask.request.environ["ostiary"].require("restart", resource="carts", namespace=namespace, name=name)
            return {"user": flask.request.environ["ostiary.user"].username}

        app.register_error_handler(AccessRefused, lambda refused: refused.response)
        with SyncGatekeeper.from_file(write_backend(gateway, attributes=TEMPLATES)) as gatekeeper:
            app.wsgi_app = GatekeeperMiddleware(app.wsgi_app, gatekeeper)  # type: ignore[method-assign]
            with wsgi_server(gateway.site, app) as api:
                yield api

    @staticmethod
    @contextmanager
    def django(gateway: ServedGateway) -> Iterator[ServedApi]:
        from ostiary_gateway.middleware.wsgi import GatekeeperMiddleware
        from tests.support.django_shop import application

        with (
            SyncGatekeeper.from_file(write_backend(gateway, attributes=TEMPLATES)) as gatekeeper,
            wsgi_server(gateway.site, GatekeeperMiddleware(application(), gatekeeper)) as api,
        ):
            yield api

    @pytest.fixture(scope="class", params=["starlette", "fastapi", "flask", "django"])
    @classmethod
    def api(cls, request: pytest.FixtureRequest, gateway: ServedGateway) -> Iterator[ServedApi]:
        with getattr(cls, request.param)(gateway) as served:
            yield served

    def test_the_view_knows_the_user(self, gateway: ServedGateway, api: ServedApi) -> None:
        token = gateway.login("alice").token
        answer = api.get("/v1/shop/carts/c1", token)
        assert (answer.status_code, answer.json()) == (200, {"user": "alice", "groups": []})
        assert len(answer.headers["Audit-Id"]) == 36

    def test_nobody_without_a_token_gets_there(self, api: ServedApi) -> None:
        """S38, S39."""
        absent, unknown = api.get("/v1/shop/carts/c1"), api.get("/v1/shop/carts/c1", "ost_" + 51 * "a")
        assert (absent.status_code, unknown.status_code) == (401, 401)
        assert absent.content == unknown.content
        assert absent.headers["WWW-Authenticate"] == 'Bearer realm="ostiary"'
        assert unknown.headers["WWW-Authenticate"].endswith('error="invalid_token"')

    def test_what_the_policy_does_not_allow_is_forbidden(self, gateway: ServedGateway, api: ServedApi) -> None:
        """S42, S52."""
        answer = api.get("/v1/shop/carts/c1", gateway.login("bob").token)
        assert answer.status_code == 403
        assert answer.json()["message"].startswith('carts "c1" is forbidden: User "bob" cannot get resource "carts"')

    def test_a_view_can_require_more(self, gateway: ServedGateway, api: ServedApi) -> None:
        alice, eve = gateway.login("alice").token, gateway.login("eve").token
        assert api.ask("POST", "/v1/shop/carts/c1/restart", alice).json() == {"user": "alice"}
        refused = api.ask("POST", "/v1/shop/carts/c1/restart", eve)
        assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")

    def test_a_withdrawn_token_is_refused(self, gateway: ServedGateway, api: ServedApi) -> None:
        """T3."""
        login = gateway.login("alice")
        assert api.get("/v1/shop/carts/c1", login.token).status_code == 200
        sign_out(gateway, login.token)
        until(lambda: api.get("/v1/shop/carts/c1", login.token).status_code == 401)


class TestViewsWithoutPolicy:
    """With ``authorizeEveryRequest: false`` the views decide, and the scope of a token still comes first."""

    @pytest.fixture(scope="class")
    @classmethod
    def api(cls, gateway: ServedGateway) -> Iterator[ServedApi]:
        with serve_starlette(gateway, authorizeEveryRequest=False) as served:
            yield served

    def test_who_it_is_is_checked_and_the_view_decides(self, gateway: ServedGateway, api: ServedApi) -> None:
        bob = gateway.login("bob").token
        assert api.get("/v1/shop/carts/c1").status_code == 401
        assert api.get("/v1/shop/carts/c1", bob).json()["user"] == "bob"
        assert api.ask("POST", "/v1/shop/carts/c1/restart", bob).status_code == 403

    def test_a_narrowed_token_is_no_more_than_its_scope(self, gateway: ServedGateway, api: ServedApi) -> None:
        token = narrowed(gateway, gateway.login("alice").token, "get carts -n shop")
        assert api.get("/v1/shop/carts/c1", token).status_code == 200
        refused = api.ask("POST", "/v1/shop/carts/c1/restart", token)
        assert (refused.status_code, "beyond this token's scope" in refused.json()["message"]) == (403, True)


class TestTokens:
    def test_a_narrowed_token_is_honoured(self, gateway: ServedGateway, api: ServedApi) -> None:
        """Decision 0050: its scope comes before the policy, and in addition to it."""
        token = narrowed(gateway, gateway.login("alice").token, "get carts -n shop; get /metrics")
        assert api.get("/v1/shop/carts/c1", token).status_code == 200
        beyond = api.get("/v1/shop/carts", token)
        assert beyond.status_code == 403
        assert beyond.json()["message"].endswith("beyond this token's scope: get /metrics; get carts -n shop")
        # What the scope has and the policy does not.
        assert api.get("/metrics", token).status_code == 403

    def test_a_jwt_is_verified_here_and_ends_with_its_session(self, gateway: ServedGateway, api: ServedApi) -> None:
        login = gateway.login("alice")
        token = jwt_for(gateway, login.token)
        assert api.get("/v1/shop/carts/c1", token).json()["user"] == "alice"
        assert api.get("/v1/shop/carts/c1", token[:-4] + "AAAA").status_code == 401
        sign_out(gateway, login.token)
        until(lambda: api.get("/v1/shop/carts/c1", token).status_code == 401)
        # Also for who comes afterwards: it was never seen by this process.
        with serve_starlette(gateway, jwt={"audiences": [AUDIENCE]}) as other:
            assert other.get("/v1/shop/carts/c1", token).status_code == 401

    def test_a_jwt_for_another_audience_is_nobodys(self, gateway: ServedGateway) -> None:
        token = jwt_for(gateway, gateway.login("alice").token)
        with serve_starlette(gateway, jwt={"audiences": ["https://other.example"]}) as other:
            assert other.get("/v1/shop/carts/c1", token).status_code == 401

    def test_jwts_are_refused_where_none_are_configured(self, gateway: ServedGateway) -> None:
        token = jwt_for(gateway, gateway.login("alice").token)
        with serve_starlette(gateway) as other:
            assert other.get("/v1/shop/carts/c1", token).status_code == 401

    def test_a_token_of_another_gateway_is_nobodys(self, tmp_path: Path, api: ServedApi) -> None:
        site = Site(tmp_path, trustme.CA())
        site.users("alice")
        with site.serving() as other:
            assert api.get("/v1/shop/carts/c1", other.login("alice").token).status_code == 401

    @pytest.mark.parametrize(
        "value",
        ["", "Bearer", "Basic YTpi", "bearer  x", "Bearer " + 20_000 * "x", "Bearer \xe4\xf6", "x y z"],
    )
    def test_malformed_credentials_are_401_without_a_word_to_the_gateway(self, api: ServedApi, value: str) -> None:
        answer = api.get("/v1/shop/carts/c1", headers=[("Authorization", value.encode("latin-1"))])
        assert (answer.status_code, answer.json()["message"]) == (401, "Unauthorized")

    def test_two_credentials_are_refused(self, gateway: ServedGateway, api: ServedApi) -> None:
        token = gateway.login("alice").token
        answer = api.get("/v1/shop/carts/c1", token, headers=[("Authorization", "Bearer x")])
        assert answer.status_code == 400

    def test_a_websocket_is_guarded_and_a_browser_can_open_it(self, gateway: ServedGateway) -> None:
        """A browser cannot set headers: its token is among the protocols."""
        from base64 import urlsafe_b64encode

        from starlette.testclient import TestClient, WebSocketDenialResponse

        token = gateway.login("alice").token
        app = starlette_app()
        app.add_middleware(GatekeeperMiddleware, gatekeeper=write_backend(gateway, attributes=TEMPLATES))
        encoded = urlsafe_b64encode(token.encode()).decode().rstrip("=")
        protocol = f"base64url.bearer.authorization.k8s.io.{encoded}"
        with TestClient(app) as client:
            with client.websocket_connect("/v1/shop/carts", subprotocols=[protocol, "chat"]) as session:
                assert session.receive_text() == "alice"
            with client.websocket_connect("/v1/shop/carts", headers={"Authorization": f"Bearer {token}"}) as session:
                assert session.receive_text() == "alice"
            with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect("/v1/shop/carts"):
                pass
        assert (denied.value.status_code, denied.value.json()["reason"]) == (401, "Unauthorized")


class TestDecisions:
    def test_the_gateway_is_asked_where_no_policy_is_here(self, gateway: ServedGateway) -> None:
        """By SubjectAccessReview. It knows no upstreams and hides nothing."""
        with serve_starlette(gateway, authorization=None) as api:
            assert api.get("/v1/shop/carts/c1", gateway.login("alice").token).status_code == 200
            refused = api.get("/v1/shop/carts/c1", gateway.login("bob").token)
            assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")

    def test_selectors_are_evaluated_as_kubernetes_does(self, gateway: ServedGateway, api: ServedApi) -> None:
        """The document's "selector evaluation"; S68."""
        token = gateway.login("alice").token
        answer = api.get("/v1/shop/carts?labelSelector=size%3E10&labelSelector=size%3C3", token)
        assert [each["metadata"]["name"] for each in answer.json()["carts"]] == ["c2"]
        answer = api.get("/v1/shop/carts?fieldSelector=metadata.name%3Dc1", token)
        assert [each["metadata"]["name"] for each in answer.json()["carts"]] == ["c1"]

    def test_a_hidden_refusal_is_the_answer_for_a_missing_object(self, gateway: ServedGateway) -> None:
        """S51, S54, S55."""
        chain = [{"name": "policy", "type": "rbac", "paths": ["policy"]}]
        with serve_starlette(gateway, authorization={"chain": chain, "hideDenied": True}) as api:
            missing = api.get("/v1/shop/carts/c9", gateway.login("alice").token)
            hidden = api.get("/v1/shop/carts/c9", gateway.login("bob").token)
            changed = api.ask("DELETE", "/v1/shop/carts/c9", gateway.login("bob").token)
        assert (missing.status_code, hidden.status_code, changed.status_code) == (404, 404, 403)
        assert missing.content == hidden.content
        assert set(missing.headers) - {"date"} == set(hidden.headers) - {"date"}

    def test_open_paths_need_no_token_and_have_no_user(self, api: ServedApi) -> None:
        assert api.get("/healthz").json() == {"has_user": False}
        assert api.get("/healthz/x").status_code == 401
        assert api.get("//healthz").status_code == 401

    @pytest.mark.parametrize(
        "path", ["/v1//shop/carts/c1", "/v1/shop/carts/c1;x", "/v1/shop/carts/%2e%2e/c1", "/v1/shop/carts%2Fc1"]
    )
    def test_paths_with_two_readings_are_refused(self, gateway: ServedGateway, api: ServedApi, path: str) -> None:
        """P1."""
        assert raw_status(api, path, gateway.login("alice").token) == 400

    def test_a_policy_that_is_broken_at_a_reload_changes_nothing_and_is_told(
        self, gateway: ServedGateway, caplog: Any
    ) -> None:
        """As at a gateway: the old policy stays in force until the new one can be read."""
        folder = gateway.site.folder / "mended"
        folder.mkdir(exist_ok=True)
        (folder / "policy.yaml").write_text(yaml.safe_dump_all(role("shop", CARTS, User="alice")))
        chain = [{"name": "policy", "type": "rbac", "paths": ["mended"]}]
        alice, bob = gateway.login("alice").token, gateway.login("bob").token
        with (
            caplog.at_level(logging.ERROR),
            serve_starlette(gateway, authorization={"chain": chain, "cacheTTL": "0s"}) as api,
        ):
            assert api.get("/v1/shop/carts/c1", alice).status_code == 200
            (folder / "policy.yaml").write_text("kind: Role\nrules: {{{")
            until(lambda: api.get("/v1/shop/carts/c1", bob).status_code == 403 and "policy.yaml" in caplog.text)
            assert api.get("/v1/shop/carts/c1", alice).status_code == 200
            (folder / "policy.yaml").write_text(yaml.safe_dump_all(role("shop", CARTS, User="bob")))
            until(lambda: api.get("/v1/shop/carts/c1", bob).status_code == 200)
            assert api.get("/v1/shop/carts/c1", alice).status_code == 403

    def test_events_are_those_of_a_gateway(self, gateway: ServedGateway) -> None:
        """S70."""
        log = gateway.site.folder / "backend-audit.log"
        token, other = gateway.login("alice").token, gateway.login("bob").token
        with serve_starlette(gateway, upstream="shop", audit={"log": {"path": log.name}}) as api:
            ids = [
                api.get(path, each).headers["Audit-Id"]
                for path, each in (
                    ("/v1/shop/carts/c1", token),
                    ("/v1/shop/carts/c1", other),
                    ("/v1/shop/carts/c1", None),
                )
            ]
        events = [json.loads(line) for line in log.read_text().splitlines()]
        ended = {event["auditID"]: event for event in events if event["stage"] == "ResponseComplete"}
        assert [ended[each]["responseStatus"]["code"] for each in ids] == [200, 403, 401]
        assert [ended[each]["user"].get("username", "") for each in ids[:2]] == ["alice", "bob"]
        assert ended[ids[0]]["annotations"][UPSTREAM] == "shop"
        assert ended[ids[1]]["annotations"][DECISION] == "forbid"
        assert token not in log.read_text()


def raw_status(api: ServedApi, target: str, token: str) -> int:
    """The status for a target that no client library would send as it is."""
    import socket as sockets
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(sockets.create_connection(("127.0.0.1", api.port), timeout=SECONDS)) as connection:
        request = f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        return int(connection.recv(64).split(b" ")[1])


class TestTrouble:
    """The door stays shut, and the operator is told why."""

    @pytest.mark.slow
    def test_a_gateway_that_is_gone_is_503_and_never_a_yes(self, tmp_path: Path, caplog: Any) -> None:
        """S53, T5. A remembered token counts for `maxStale`, and not longer."""
        site = Site(tmp_path, trustme.CA())
        site.users("alice")
        prepare(site)
        site.policy(role("shop", CARTS, User="alice"))
        with site.serving(webhooks=WEBHOOKS) as served:
            token = served.login("alice").token
            with serve_starlette(served, gateway={"maxStale": "2s", "timeout": "30s"}) as api:
                assert api.get("/v1/shop/carts/c1", token).status_code == 200
                with caplog.at_level(logging.ERROR, "ostiary.backend"):
                    served.stop()
                    until(lambda: api.get("/v1/shop/carts/c1", token).status_code == 503)
                    answer = api.get("/v1/shop/carts/c1", token)
                assert (answer.status_code, answer.json()["reason"]) == (503, "ServiceUnavailable")
                assert "revocations cannot be followed" in caplog.text
                assert token not in caplog.text
                assert CALLER not in caplog.text

    def test_a_gateway_of_another_authority_is_not_believed(self, gateway: ServedGateway, caplog: Any) -> None:
        """S68: no other server is taken for it."""
        trustme.CA().cert_pem.write_to_path(str(gateway.site.folder / "other-ca.pem"))
        with (
            caplog.at_level(logging.ERROR, "ostiary.backend"),
            serve_starlette(gateway, gateway={"tls": {"ca": "other-ca.pem"}}) as api,
        ):
            assert api.get("/v1/shop/carts/c1", gateway.login("alice").token).status_code == 503
        assert "its certificate is not trusted" in caplog.text

    def test_a_backend_that_the_gateway_does_not_know_learns_nothing(self, gateway: ServedGateway, caplog: Any) -> None:
        (gateway.site.folder / "wrong-token").write_text("not-the-token")
        with (
            caplog.at_level(logging.ERROR, "ostiary.backend"),
            serve_starlette(gateway, gateway={"tokenFile": "wrong-token"}) as api,
        ):
            assert api.get("/v1/shop/carts/c1", gateway.login("alice").token).status_code == 503
        assert "webhooks.callers" in caplog.text

    def test_mistakes_in_the_configuration_stop_the_start(self, gateway: ServedGateway) -> None:
        path = write_backend(gateway, gateway={"server": "http://gateway.example", "timeot": "1s"}, attributes="htpp")
        with pytest.raises(ConfigurationError) as caught:
            SyncGatekeeper.from_file(path)
        text = " ".join(map(str, caught.value.problems))
        assert "plain text" in text
        assert "timeot" in text
        assert "htpp" in text or "attributes" in text
