"""Nothing that is configured is ignored in silence: every credential field of a user, alone and in pairs.

What client-go 1.36.4 does with a combination is written down once, as `verdict`; the vectors of
``tests/conformance/test_client_vectors.py`` are its proof. Where a field takes no effect, the log says so.
"""

from __future__ import annotations

import base64
import gc
import itertools
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ostiary.client.connection import Connection, connect
from ostiary.errors import OstiaryError
from ostiary.kubeconfig import Overrides
from ostiary.model import Secret
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user

Connect = Callable[..., Connection]
Issue = Callable[[str], tuple[str, str]]

ID_TOKEN = ".".join(
    base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (b"{}", b'{"exp": 4102444800}', b"signature")
)
OIDC = {"idp-issuer-url": "https://issuer.test", "client-id": "c", "id-token": ID_TOKEN}
EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "interactiveMode": "Never"}
HEADERS = {
    "token": "Bearer static",
    "tokenFile": "Bearer in-a-file",
    "username": "Basic",
    "exec": "Bearer token-1",
    "oidc": f"Bearer {ID_TOKEN}",
}


@pytest.fixture
def fields(tmp_path: Path, plugin: PluginScript, client_certificate: Issue) -> dict[str, dict[str, Any]]:
    certificate, key = client_certificate("dev")
    for name, text in (("token-file", "in-a-file"), ("cert.pem", certificate), ("key.pem", key)):
        (tmp_path / name).write_text(text)
    return {
        "token": {"token": "static"},
        "tokenFile": {"tokenFile": str(tmp_path / "token-file")},
        "certificate": {"client-certificate": str(tmp_path / "cert.pem"), "client-key": str(tmp_path / "key.pem")},
        "certificate-data": {
            "client-certificate-data": base64.b64encode(certificate.encode()).decode(),
            "client-key-data": base64.b64encode(key.encode()).decode(),
        },
        "certificate alone": {"client-certificate": str(tmp_path / "cert.pem")},
        "key alone": {"client-key": str(tmp_path / "key.pem")},
        "username": {"username": "bob"},
        "username, empty password": {"username": "bob", "password": ""},
        "password": {"password": "hidden"},
        "exec": exec_user(plugin.path),
        "oidc": {"auth-provider": {"name": "oidc", "config": OIDC}},
        "gcp": {"auth-provider": {"name": "gcp", "config": {"access-token": "x"}}},
        "azure": {"auth-provider": {"name": "azure"}},
        "unknown provider": {"auth-provider": {"name": "nope"}},
        "as": {"as": "jane"},
        "as-groups": {"as-groups": ["g"]},
        "as-uid": {"as-uid": "7"},
        "as-user-extra": {"as-user-extra": {"k": ["v"]}},
    }


@dataclass(frozen=True)
class Verdict:
    """What client-go does: refuse, or send this header and perhaps the certificate; and what goes unused."""

    refused: bool = False
    authorization: str | None = None
    certificate: bool = False
    runs: int = 0
    unused: tuple[str, ...] = ()


def verdict(user: dict[str, Any]) -> Verdict:
    has_certificate = bool(user.get("client-certificate") or user.get("client-certificate-data"))
    has_key = bool(user.get("client-key") or user.get("client-key-data"))
    provider = (user.get("auth-provider") or {}).get("name")
    username, password = user.get("username"), user.get("password")
    refused = (
        (has_certificate and not has_key)
        or ("client-certificate" in user and "client-certificate-data" in user)
        or (has_certificate and "client-key" in user and "client-key-data" in user)
        or ("token" in user and bool(username or password))
        or ("tokenFile" in user and bool(username))
        or ("exec" in user and provider is not None)
        or provider not in (None, "oidc")
        or (not user.get("as") and any(user.get(f"as-{name}") for name in ("groups", "uid", "user-extra")))
    )
    if refused:
        return Verdict(refused=True)
    certified = has_certificate and has_key
    header = next((name for name in ("tokenFile", "token", "username") if user.get(name)), None)
    runs_exec = "exec" in user and header is None and not certified
    unused = [
        *(["password"] if password and not username else []),
        *(["client-key"] if has_key and not has_certificate else []),
        *(["exec"] if "exec" in user and not runs_exec else []),
        *(["auth-provider"] if provider and header else []),
    ]
    signer = header or ("exec" if runs_exec else "oidc" if provider else None)
    authorization = HEADERS[signer] if signer else None
    if signer == "username":
        authorization = "Basic " + base64.b64encode(f"{username}:{password or ''}".encode()).decode()
    return Verdict(False, authorization, certified, int(runs_exec), tuple(unused))


def observed(
    connect_to: Connect, api: ApiServer, plugin: PluginScript, user: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> Verdict:
    # Connections with the same plugin share its credential as long as one of them lives: none of the last test may.
    gc.collect()
    api.requests.clear()
    caplog.clear()
    before = plugin.runs
    try:
        with connect_to(user=user).httpx() as client:
            client.get("/version")
    except OstiaryError:
        assert api.requests == []
        return Verdict(refused=True)
    (received,) = api.requests
    unused = [record.args[1] for record in caplog.records if "is not used" in record.msg and record.args]  # type: ignore[index]
    return Verdict(
        False,
        received.headers.get("Authorization"),
        received.certificate is not None,
        plugin.runs - before,
        tuple(map(str, unused)),
    )


@pytest.fixture(autouse=True, scope="module")
def nothing_older_is_collected() -> None:
    """What earlier tests of this process left is not looked at again and again by `observed`: that took minutes."""
    gc.collect()
    gc.freeze()


def test_every_credential_field_alone_and_in_pairs_is_obeyed_refused_or_told_as_unused(
    connect_to: Connect,
    api: ApiServer,
    plugin: PluginScript,
    fields: dict[str, dict[str, Any]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """D1, F1."""
    differences = []
    for names in (*itertools.combinations(fields, 1), *itertools.combinations(fields, 2)):
        user = {key: value for name in names for key, value in fields[name].items()}
        with caplog.at_level(logging.WARNING, "ostiary.client"):
            ours, wanted = observed(connect_to, api, plugin, user, caplog), verdict(user)
        if ours != wanted:
            differences.append(f"{' + '.join(names)}: {ours}, and client-go: {wanted}")
    assert not differences, "\n".join(differences)


def test_no_user_that_has_a_credential_is_sent_anonymously_in_silence(
    fields: dict[str, dict[str, Any]],
) -> None:
    """The table above itself: without a header and without a certificate, something was told to be unused."""
    for names in (
        *itertools.combinations(fields, 1),
        *itertools.combinations(fields, 2),
        *itertools.combinations(fields, 3),
    ):
        user = {key: value for name in names for key, value in fields[name].items()}
        found = verdict(user)
        only_names = set(user) <= {"as", "as-groups", "as-uid", "as-user-extra"}
        assert found.refused or found.authorization or found.certificate or found.unused or only_names, json.dumps(user)


@pytest.mark.parametrize("server", ["c.test:6443", "http://c.test:6443"])
def test_what_is_not_sent_over_http_is_told(
    connect_to: Connect, fields: dict[str, dict[str, Any]], caplog: pytest.LogCaptureFixture, server: str
) -> None:
    """The certificate authority of the fixture's cluster takes no effect either."""
    for name in ("token", "tokenFile", "certificate", "username", "exec", "oidc"):
        caplog.clear()
        connection = connect_to(server=server, user=fields[name])
        assert connection.source is None
        assert "no credential is sent to http://c.test:6443" in caplog.text
        assert "is not checked" in caplog.text


def test_a_password_in_the_address_signs_over_https_and_is_never_told(
    connect_to: Connect, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = api.url.replace("https://", "https://u:c4n4ry@")
    connection = connect_to(server=server, user={"token": "static"})
    with connection.httpx() as client:
        client.get("/version")
    assert api.requests[0].headers.get_list("Authorization") == ["Basic " + base64.b64encode(b"u:c4n4ry").decode()]
    assert "the credential of user 'dev' is not sent" in caplog.text
    plain = connect_to(server="http://u:c4n4ry@c.test", user={})
    assert "no credential is sent to http://c.test" in caplog.text
    assert "c4n4ry" not in caplog.text + repr(connection) + repr(plain) + connection.server


def test_a_request_that_its_caller_signs_still_presents_the_certificate(
    connect_to: Connect, api: ApiServer, fields: dict[str, dict[str, Any]]
) -> None:
    for name in ("certificate", "certificate-data"):
        with connect_to(user=fields[name]).httpx() as client:
            client.get("/version", headers={"Authorization": "Bearer mine"})
        assert (api.requests[-1].headers.get("Authorization"), api.requests[-1].certificate) == ("Bearer mine", "dev")


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ({"tokn": "c4n4ry"}, "users[0].user.tokn"),
        ({"Token": "c4n4ry"}, "users[0].user.Token"),
        ({"token": "t", "exec": {"comand": "x", **EXEC}}, "users[0].user.exec.comand"),
    ],
)
def test_a_field_that_does_not_exist_is_told_with_its_place_and_without_its_value(
    connect_to: Connect, caplog: pytest.LogCaptureFixture, user: dict[str, Any], told: str
) -> None:
    connect_to(user=user)
    assert "unknown field, which takes no effect: " in caplog.text
    assert f"{told}\n" in caplog.text
    assert "c4n4ry" not in caplog.text


def test_unknown_fields_of_entries_that_are_not_chosen_are_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n"
        "clusters: [{name: a, cluster: {server: 'https://a', sever: x}}]\n"
        "users: [{name: b, user: {tokn: x}}, {name: a, user: {token: t}, tkn: y}]\nusrs: []\n"
    )
    connect(path)
    told = [str(record.args[0]).partition(", ")[2] for record in caplog.records if record.args]  # type: ignore[index]
    assert sorted(told) == ["clusters[0].cluster.sever", "users[1].tkn", "usrs"]


@pytest.mark.parametrize(("given", "is_told"), [(Overrides(), True), (Overrides(token=Secret("t")), False)])
def test_a_context_whose_user_is_not_there_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: Overrides, is_told: bool
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(
        "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: bob}}]\n"
        "clusters: [{name: a, cluster: {server: 'https://a'}}]\n"
    )
    connect(path, overrides=given)
    assert ("user 'bob' is not in the kubeconfig: requests go out without a credential" in caplog.text) is is_told


@pytest.mark.parametrize("content", [None, "", "a b"])
def test_a_token_file_that_cannot_be_used_beside_a_token_is_told(
    connect_to: Connect, api: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with connect_to(user={"token": "static", "tokenFile": str(file)}).httpx() as client:
        client.get("/version")
    assert api.requests[-1].headers.get("Authorization") == "Bearer static"
    assert "the token in the kubeconfig is sent instead" in caplog.text
