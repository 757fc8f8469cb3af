"""What docker writes is read as the kubelet reads it."""

from __future__ import annotations

import json
import traceback
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.core.go_text import bytes_of
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.credentials import RegistryLogin
from ostiary.registry.docker_config import (
    NodeDockerConfig,
    decode_auth,
    parse_config_json,
    parse_dockercfg,
    read_node_config,
    search_paths,
)


def entry(fields: object) -> RegistryLogin:
    return parse_dockercfg(json.dumps({"r.io": fields}).encode()).logins["r.io"]


def test_an_entry_is_read(subtests: pytest.Subtests) -> None:
    cases = [
        ({"username": "foo", "password": "bar", "email": "a@b.c"}, RegistryLogin("foo", Secret("bar"), "a@b.c")),
        ({"auth": "Zm9vOmJhcg==", "email": "a@b.c"}, RegistryLogin("foo", Secret("bar"), "a@b.c")),
        ({"username": "foo", "password": "bar", "auth": "cGluZzpwb25n"}, RegistryLogin("ping", Secret("pong"))),
        (
            {"auth": "Zm9vOmJhcg==", "identitytoken": "t"},
            RegistryLogin("foo", Secret("bar"), identity_token=Secret("t")),
        ),
        ({"unknown": 1}, RegistryLogin()),
        (None, RegistryLogin()),
    ]
    for fields, login in cases:
        with subtests.test(fields=fields, login=login):
            assert entry(fields) == login


@pytest.mark.parametrize("fields", [{"auth": "pants"}, {"email": False}, {"username": 1}, [], "text"])
def test_a_wrong_entry_makes_the_file_unusable(fields: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        entry(fields)
    assert "r.io" in str(caught.value)
    assert "pants" not in str(caught.value)


@pytest.mark.parametrize("text", ["Zm9vOmJhcg==", "Zm9vOmJhcg", "Zm9vOm\nJhcg==\n", "Zm9vOm\r\nJhcg=="])
def test_an_auth_field_is_decoded(text: str) -> None:
    assert decode_auth(text) == ("foo", "bar")


NO_AUTH_FIELDS = ["cGFudHM=", "Zm9vOmJhcg== ", "pants", "Zm9vOmJhcg=", "Zm9v OmJhcg==", "/////w=="]
# Python's own decoder takes padding that is not needed.
WRONG_PADDING = ["Zm9vOmJh=", "Zm9vOmJhcg===", "Zm9vOmJhcg==Zg==", "Zm9vOmJhc", "Zm9vOmJh=\n="]


def test_an_auth_field_that_is_none_is_refused(subtests: pytest.Subtests) -> None:
    for text in NO_AUTH_FIELDS + WRONG_PADDING:
        with subtests.test(text=text):
            with pytest.raises(ValueError) as caught:
                decode_auth(text)
            assert text not in "".join(traceback.format_exception_only(caught.value))


@given(username=st.text().filter(lambda text: ":" not in text), password=st.text(), padded=st.booleans())
def test_every_login_can_be_decoded(username: str, password: str, padded: bool) -> None:
    data = b64encode(f"{username}:{password}".encode()).decode()
    assert decode_auth(data if padded else data.rstrip("=")) == (username, password)


@given(st.text())
def test_whatever_stands_in_an_auth_field_is_a_login_or_a_value_error(text: str) -> None:
    raised = None
    try:
        decode_auth(text)
    except ValueError as error:
        raised = error
    assert raised is None or raised.__context__ is None, "the decoder's exception would carry the text along"


def test_what_is_no_json_is_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    for data in [b'{"auths": {"canary', b"", b"canary: yes", b"[]", b"\xff", b"[" * 100_000]:
        with subtests.test(data=data):
            with pytest.raises(ConfigurationError) as caught:
                parse_config_json(data, file="config.json")
            assert caught.value.code == "config-syntax"
            assert "canary" not in "".join(traceback.format_exception(caught.value))


def test_a_config_json_has_logins_and_helpers() -> None:
    text = b'{"auths": {"r.io": {"auth": "Zm9vOmJhcg=="}}, "credHelpers": {"q.io": "pass"}, "credsStore": "osx"}'
    config = parse_config_json(text, file="f")
    assert config.logins == {"r.io": RegistryLogin("foo", Secret("bar"))}
    assert (config.helpers, config.store, config.file) == ({"q.io": "pass"}, "osx", "f")


@pytest.mark.parametrize(
    ("name", "entry_names"),
    [("auths", ("auth",)), ("Auths", ("Auth",)), ("AUTHS", ("aUTH",)), ("auth\u017f", ("Username", "PassWord"))],
)
def test_the_names_of_fields_are_read_without_regard_to_case(name: str, entry_names: tuple[str, ...]) -> None:
    values = ("Zm9vOmJhcg==",) if len(entry_names) == 1 else ("foo", "bar")
    text = json.dumps({name: {"R.io": dict(zip(entry_names, values, strict=True))}})
    assert parse_config_json(text.encode()).logins == {"R.io": RegistryLogin("foo", Secret("bar"))}


def test_what_stands_twice_is_one_as_in_go() -> None:
    """Two objects of logins are one; of two logins or texts the last counts; null empties an object and no text."""
    twice = '{"username": "c", "Username": "d", "username": null, "password": "p", "password": ""}'
    first = '{"a.io": {"username": "a"}, "b.io": {"username": "b", "email": "b"}}'
    text = f'{{"auths": {first}, "Auths": {{"b.io": {twice}}}}}'.encode()
    assert parse_config_json(text).logins == {"a.io": RegistryLogin("a"), "b.io": RegistryLogin("d")}
    assert parse_config_json(text[:-1] + b', "auths": null}').logins == {}
    assert parse_config_json(b"null").logins == parse_dockercfg(b"null").logins == {}


def test_a_field_that_the_kubelet_does_not_read_may_be_anything(subtests: pytest.Subtests) -> None:
    cases = [
        '"credsStore": 5',
        '"credHelpers": [1]',
        '"credHelpers": {"a": 1}',
        '"proxies": []',
        '"psFormat": 1',
        '"x": 1e400',
    ]
    for field in cases:
        with subtests.test(field=field):
            entry = '{"auth": "Zm9vOmJhcg==", "identitytoken": 5, "registrytoken": {}}'
            text = f'{{"auths": {{"r.io": {entry}}}, {field}}}'
            assert parse_config_json(text.encode()).logins == {"r.io": RegistryLogin("foo", Secret("bar"))}


@pytest.mark.parametrize("field", ['"HttpHeaders": 5', '"httpheaders": {"a": 1}', '"auths": []', '"Auths": {"a": 5}'])
def test_a_field_that_the_kubelet_reads_has_its_type(field: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_config_json(f'{{"auths": {{}}, {field}}}'.encode())


@pytest.mark.parametrize(
    "text", ['{"auths": {},}', "{'auths': {}}", '{"auths": {}} # note', '{"auths": {}}{}', "auths: {}"]
)
def test_a_docker_config_is_json_and_nothing_else(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_config_json(text.encode())
    assert caught.value.code == "config-syntax"


def test_a_password_need_not_be_text() -> None:
    login = entry({"auth": b64encode(b"foo:\xff\xe2\x82bar").decode()})
    assert bytes_of(login.password.reveal()) == b"\xff\xe2\x82bar"


def test_all_mistakes_of_a_file_are_told() -> None:
    text = b'{"auths": {"r.io": {"auth": "pants"}, "q.io": 1}, "credHelpers": {"x": 2}, "credsStore": []}'
    with pytest.raises(ConfigurationError) as caught:
        parse_config_json(text, for_docker=True)
    assert [problem.place.path for problem in caught.value.problems] == [
        'auths["r.io"].auth',
        'auths["q.io"]',
        "credHelpers.x",
        "credsStore",
    ]


# --- the node's file ---


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def write(path: Path, name: str, *, legacy: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    logins = {"r.io": {"username": name}}
    path.write_text(json.dumps(logins if legacy else {"auths": logins}))


def read(home: Path) -> str:
    config = read_node_config(str(home / "kubelet"))
    return config.logins["r.io"].username if config.logins else ""


def test_the_places_are_the_kubelets(home: Path) -> None:
    assert list(search_paths("/var/lib/kubelet")) == [
        "/var/lib/kubelet/config.json",
        "./config.json",
        f"{home}/home/.docker/config.json",
        "/.docker/config.json",
        "/var/lib/kubelet/.dockercfg",
        "./.dockercfg",
        f"{home}/home/.dockercfg",
        "/.dockercfg",
    ]


def test_the_first_file_that_can_be_read_counts_whole(home: Path) -> None:
    assert read(home) == ""
    write(home / "home/.dockercfg", "old home", legacy=True)
    assert read(home) == "old home"
    write(home / "home/.docker/config.json", "home")
    assert read(home) == "home"
    write(home / "here/config.json", "here")
    assert read(home) == "here"
    write(home / "kubelet/config.json", "kubelet")
    assert read(home) == "kubelet"


def test_a_file_that_cannot_be_parsed_is_passed_over_with_a_word_in_the_log(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(home / "home/.docker/config.json", "home")
    (home / "here/config.json").write_text('{"auths": canary')
    assert read(home) == "home"
    assert "config.json is skipped" in caplog.text
    assert "canary" not in caplog.text


def test_what_is_found_names_the_file(home: Path) -> None:
    write(home / "kubelet/config.json", "kubelet")
    (found,) = NodeDockerConfig(str(home / "kubelet")).credentials().find("r.io/x")
    assert str(found.source) == f"file {home}/kubelet/config.json"
