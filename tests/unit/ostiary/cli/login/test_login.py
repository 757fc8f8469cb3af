"""``ostiary login``, ``logout`` and ``whoami`` at a gateway that speaks TLS, without a browser or a terminal."""

from __future__ import annotations

import json
import sys
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
import yaml

from ostiary.cli import main
from ostiary.cli.login.gateway import GatewayClient
from ostiary.cli.login.login_lock import Turn
from ostiary.cli.login.login_methods import has_browser, sign_in
from ostiary.cli.login.sessions import GatewayAccount, Sessions, SignInGrant
from ostiary.cli.login.terminal import Person, Wishes
from ostiary.errors import ConfigurationError, CredentialError, LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret
from ostiary.wire.client_authentication import V1
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import HttpServer, Response
from tests.support.signin_server import SigninServer
from tests.support.waiting import until

Captured = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
AMBIENT = [{"name": "here", "kind": "ambient"}]
PASSWORD = [{"name": "staff", "kind": "password"}]
KEYRING = """
import json, pathlib
FILE = pathlib.Path(__file__).with_name("ring.json")
def _all(): return json.loads(FILE.read_text()) if FILE.exists() else {}
def get_password(service, name): return _all().get(service + "|" + name)
def set_password(service, name, value): FILE.write_text(json.dumps({**_all(), service + "|" + name: value}))
def delete_password(service, name):
    kept = _all(); del kept[service + "|" + name]; FILE.write_text(json.dumps(kept))
"""


class Somebody(Person):
    """Answers what they are asked with the next of *answers*."""

    def __init__(self, *answers: str, present: bool = True) -> None:
        self.present = present
        self.answers = list(answers)
        self.told: list[str] = []
        self.offered: list[str] = []
        self.on_tell: Callable[[], None] = lambda: None

    def tell(self, text: str) -> None:
        self.told.append(text)
        self.on_tell()

    def ask(self, prompt: str, default: str) -> str:
        self.offered.append(default)
        return self.answers.pop(0) or default

    def ask_secret(self, prompt: str) -> Secret:
        return Secret(self.answers.pop(0))


@pytest.fixture
def server(ca: trustme.CA) -> Iterator[SigninServer]:
    with SigninServer(ca).running() as running:
        running.methods = AMBIENT
        yield running


@pytest.fixture
def authority(ca: trustme.CA, tmp_path: Path) -> str:
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    return str(tmp_path / "ca.pem")


@pytest.fixture
def client(server: SigninServer, ca: trustme.CA) -> GatewayClient:
    return GatewayClient(server.url, authorities_pem=ca.cert_pem.bytes().decode())


def login(server: SigninServer, authority: str, *words: str) -> int:
    return main(["login", "--server", server.url, "--ca", authority, *words])


# --- signing in ---


def test_a_request_that_is_proof_by_itself_needs_nothing_of_the_person(
    server: SigninServer, authority: str, capsys: Captured
) -> None:
    assert login(server, authority) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"signed in at {server.url} as ann" in shown.err
    assert not any(secret in shown.err for secret in (*server.tokens, *server.renewals))


def test_a_gateway_that_nobody_vouches_for_is_not_talked_to(server: SigninServer, capsys: Captured) -> None:
    assert main(["login", "--server", server.url]) == 1
    said = capsys.readouterr().err
    assert "the gateway's certificate cannot be verified" in said
    assert "--ca FILE" in said
    assert server.count.total() == 0


def test_a_gateway_that_is_not_there_is_told_with_its_address(capsys: Captured) -> None:
    assert main(["login", "--server", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert "the gateway is unreachable" in said
    assert "http://127.0.0.1:9" in said


def test_what_the_gateway_says_is_the_cause(server: SigninServer, authority: str, capsys: Captured) -> None:
    server.broken = 503
    assert login(server, authority) == 1
    assert "the identity provider is unavailable" in capsys.readouterr().err


def test_a_provider_that_is_not_there_is_answered_with_those_that_are(
    server: SigninServer, authority: str, capsys: Captured
) -> None:
    assert login(server, authority, "--provider", "nobody") == 1
    assert "'nobody' is not configured there; known: here" in capsys.readouterr().err


def test_a_password_is_asked_for_again_after_a_mistake_and_not_for_ever(
    server: SigninServer, client: GatewayClient
) -> None:
    server.methods = PASSWORD
    person = Somebody("ann", "wrong", "ann", "pässword")
    assert sign_in(client, GatewayAccount(server.url), person, Wishes()).user == "ann"
    assert person.told == ["wrong username or password"]
    with pytest.raises(LoginRefused):
        sign_in(client, GatewayAccount(server.url), Somebody(*["ann", "wrong"] * 3), Wishes())


def test_the_name_that_was_typed_is_offered_again(server: SigninServer, client: GatewayClient) -> None:
    server.methods = PASSWORD
    person = Somebody("ann", "wrong", "", "pässword")
    assert sign_in(client, GatewayAccount(server.url), person, Wishes(username="root")).user == "ann"
    assert person.offered == ["root", "ann"]


def test_the_account_s_name_is_offered_as_username(server: SigninServer, client: GatewayClient) -> None:
    server.methods = PASSWORD
    assert sign_in(client, GatewayAccount(server.url, "ann"), Somebody("", "pässword"), Wishes()).user == "ann"


def test_a_device_shows_a_code_and_waits_until_somebody_approves(server: SigninServer, client: GatewayClient) -> None:
    person = Somebody(present=False)

    def approve_one_that_waits() -> None:
        until(lambda: server.count["POST /auth/device/token"])
        server.decide(approve=True)

    person.on_tell = lambda: threading.Thread(target=approve_one_that_waits).start()
    assert sign_in(client, GatewayAccount(server.url), person, Wishes(device=True)).user == "ann"
    assert "BCDF-GHJK" in person.told[0]
    assert f"{server.url}/auth/device" in person.told[0]
    assert server.seen_clients[0].startswith("ostiary on ")


def test_a_device_that_is_denied_is_refused(server: SigninServer, client: GatewayClient) -> None:
    person = Somebody()
    person.on_tell = lambda: server.decide(approve=False)
    with pytest.raises(LoginRefused) as caught:
        sign_in(client, GatewayAccount(server.url), person, Wishes(device=True))
    assert caught.value.cause == "sign-in was refused in the browser"


def test_a_device_that_nobody_approves_is_given_up(server: SigninServer, client: GatewayClient) -> None:
    with pytest.raises(CredentialError) as caught:
        sign_in(client, GatewayAccount(server.url), Somebody(), Wishes(device=True, seconds=0.05))
    assert caught.value.code == "sign-in-unanswered"


def test_over_ssh_the_browser_is_elsewhere(
    server: SigninServer, client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.methods = [{"name": "corp", "kind": "redirect"}]
    monkeypatch.delenv("BROWSER", raising=False)
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 1 192.0.2.2 22")
    person = Somebody()
    person.on_tell = lambda: server.decide(approve=True)
    assert sign_in(client, GatewayAccount(server.url), person, Wishes()).user == "ann"
    assert server.count["POST /auth/device"] == 1


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "w"}, True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "a"}, False),
        ({"SSH_TTY": "/dev/pts/1", "BROWSER": "remote-open"}, True),
    ],
)
def test_a_browser_is_one_that_the_person_sees(environ: dict[str, str], found: bool) -> None:
    assert has_browser(environ) == found


@pytest.mark.parametrize(("platform", "has_one"), [("linux", False), ("darwin", True), ("win32", True)])
def test_without_a_display_there_is_a_browser_where_screens_need_none(platform: str, has_one: bool) -> None:
    assert has_browser({}, platform) == has_one
    assert not has_browser({"SSH_CONNECTION": "a"}, platform)


# --- the session afterwards ---


def test_whoami_tells_the_groups_with_their_sources_and_no_token(
    server: SigninServer, authority: str, capsys: Captured
) -> None:
    login(server, authority)
    assert main(["whoami"]) == 0
    text = capsys.readouterr().out
    assert "dev (from teams)" in text
    assert main(["whoami", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["user"] == "ann"
    assert told["groups"][0] == {"name": "dev", "source": "teams"}
    assert told["server"] == server.url
    assert not any(token in text + json.dumps(told) for token in server.tokens)


def test_whoami_without_a_session_asks_nobody(server: SigninServer, capsys: Captured) -> None:
    assert main(["whoami", "--server", server.url, "-o", "json"]) == 1
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "sign-in-needed"


def test_whoami_of_a_session_that_was_ended_elsewhere_says_so(
    server: SigninServer, authority: str, capsys: Captured
) -> None:
    login(server, authority)
    server.end_sessions()
    assert main(["whoami"]) == 1
    assert "the gateway does not know this session any more" in capsys.readouterr().err


def test_a_step_up_rule_that_the_gateway_does_not_have_is_told_as_such(
    server: SigninServer, authority: str, capsys: Captured
) -> None:
    login(server, authority)
    assert main(["login", "--step-up", "delete-in-prd", "--ca", authority]) == 1
    told = capsys.readouterr().err
    assert "there is no step-up rule of this name" in told
    assert "leave the name out" in told


@pytest.mark.parametrize("words", [[], ["--everywhere"]])
def test_logout_ends_the_session_there_and_here(
    server: SigninServer, authority: str, words: list[str], capsys: Captured
) -> None:
    login(server, authority)
    assert main(["logout", *words]) == 0
    assert server.renewals == set()
    assert server.everywhere == ["true" if words else ""]
    assert Sessions(GatewayAccount(server.url)).session() is None
    assert Sessions(GatewayAccount(server.url)).ready() is None
    assert main(["logout", "--server", server.url, *words]) == (1 if words else 0)


def test_logout_forgets_the_tokens_even_if_the_gateway_does_not_answer(
    server: SigninServer, authority: str, capsys: Captured
) -> None:
    login(server, authority)
    server.broken = 503
    assert main(["logout"]) == 1
    assert "at the gateway the session stays active" in capsys.readouterr().err
    assert Sessions(GatewayAccount(server.url)).session() is None


# --- which gateway ---


def test_the_gateway_is_that_of_the_environment_or_of_the_current_context(
    server: SigninServer, authority: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    login(server, authority, "--account", "admin")
    login(server, authority)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(["kubeconfig", "--account", "admin", "--merge"]) == 0
    capsys.readouterr()
    assert main(["whoami", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["account"] == "admin"
    monkeypatch.setenv("OSTIARY_SERVER", "https://other.example")
    assert main(["logout"]) == 0
    assert "https://other.example" in capsys.readouterr().err


def kubeconfig(server: SigninServer, path: Path, cluster: Mapping[str, object], *, prefix: str = "") -> None:
    """A kubeconfig whose current context signs in at *server*; *cluster* is whom its certificate is trusted by."""
    user = {"exec": {"apiVersion": V1, "command": "ostiary", "args": ["get-token", f"--server={server.url}"]}}
    user["exec"]["interactiveMode"] = "Never"
    written = {
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": server.url + prefix, **cluster}}],
        "users": [{"name": "here", "user": user}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here"}}],
    }
    path.write_text(yaml.safe_dump(written))


@pytest.mark.parametrize("words", [[], ["--server"]], ids=["current context", "--server"])
@pytest.mark.parametrize("way", ["data", "file"])
def test_the_authority_of_the_kubeconfig_is_that_of_login_whoami_and_logout(
    server: SigninServer, ca_data: str, authority: str, tmp_path: Path, monkeypatch: Patch, way: str, words: list[str]
) -> None:
    cluster = {"certificate-authority-data": ca_data} if way == "data" else {"certificate-authority": "ca.pem"}
    kubeconfig(server, tmp_path / "config", cluster, prefix="/staging")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.chdir("/")
    words = [*words, server.url] if words else []
    assert main(["login", *words]) == 0
    Sessions(GatewayAccount(server.url)).save(kept(server), store="file", authorities_pem=None)
    assert main(["whoami", *words]) == 0
    assert main(["logout", *words]) == 0
    assert server.count["POST /auth/logout"] == 1


def kept(server: SigninServer) -> SignInGrant:
    token, renewal = next(iter(server.tokens)), next(iter(server.renewals))
    until = datetime.now(UTC) + timedelta(minutes=10)
    return SignInGrant(Secret(token), until, Secret(renewal), "s1", until, "ann")


def test_a_merged_context_is_enough_though_another_one_is_current(
    server: SigninServer, authority: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "config").write_text("current-context: other\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(["kubeconfig", "--server", server.url, "--ca", authority, "--merge"]) == 0
    assert main(["login", "--server", server.url]) == 0


def test_a_kubeconfig_that_is_not_there_yet_is_no_matter(
    server: SigninServer, authority: str, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    login(server, authority)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    capsys.readouterr()
    assert main(["whoami", "--server", server.url]) == 0
    assert capsys.readouterr().err == ""


def test_the_authority_of_another_server_vouches_for_nobody_here(
    server: SigninServer, ca_data: str, tmp_path: Path, monkeypatch: Patch, capsys: Captured
) -> None:
    cluster = {"certificate-authority-data": ca_data, "server": server.url + "0"}
    kubeconfig(server, tmp_path / "config", cluster)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(["login"]) == 1
    assert "the gateway's certificate cannot be verified" in capsys.readouterr().err


def test_what_the_command_line_names_beats_the_kubeconfig(
    server: SigninServer, authority: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    other = b64encode(trustme.CA().cert_pem.bytes()).decode()
    kubeconfig(server, tmp_path / "config", {"certificate-authority-data": other})
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert main(["login"]) == 1
    assert main(["login", "--ca", authority]) == 0


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"certificate-authority": "gone.pem"}, "/gone.pem\n"),
        ({"certificate-authority-data": "bm8="}, "/config:3, clusters[0].cluster\n"),
    ],
    ids=["file", "data"],
)
def test_an_authority_of_the_kubeconfig_that_is_none_is_told_and_keeps_no_token_here(
    server: SigninServer,
    authority: str,
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Captured,
    cluster: dict[str, object],
    told: str,
) -> None:
    login(server, authority)
    kubeconfig(server, tmp_path / "config", cluster)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for command in ("login", "logout"):
        capsys.readouterr()
        assert main([command]) == 1
        assert told in capsys.readouterr().err
    assert Sessions(GatewayAccount(server.url)).session() is None


def test_a_ca_that_is_none_is_named(
    subtests: pytest.Subtests, tmp_path_factory: pytest.TempPathFactory, capsys: Captured
) -> None:
    for content in [b"", b"no", b"\x30\x82\x01", b"-----BEGIN CERTIFICATE-----\nAAAA\n"]:
        for command in ["login", "whoami", "logout", "kubeconfig"]:
            with subtests.test(content=content, command=command):
                tmp_path = tmp_path_factory.mktemp("case")
                path = tmp_path / "tls.pem"
                path.write_bytes(content)
                assert main([*command.split(), "--server", "https://gateway.example", "--ca", str(path)]) == 1
                said = capsys.readouterr().err
                assert f"where  {path}\n" in said
                assert "it holds no PEM certificate" in said
                assert "certificate-authority" not in said


def test_a_ca_may_have_comments_in_any_language(server: SigninServer, authority: str) -> None:
    path = Path(authority)
    path.write_text(f"# Főtanúsítvány\n{path.read_text()}", encoding="utf-8")
    assert login(server, authority) == 0
    assert main(["whoami"]) == 0


def test_with_several_gateways_nothing_is_guessed(capsys: Captured, server: SigninServer, authority: str) -> None:
    login(server, authority)
    assert main(["login", "--server", server.url.replace("localhost", "127.0.0.1"), "--ca", authority]) == 0
    assert main(["whoami"]) == 2
    assert "no gateway is named" in capsys.readouterr().err


# --- the keyring ---


@pytest.fixture
def keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "keyring.py").write_text(KEYRING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "keyring", raising=False)
    yield tmp_path / "ring.json"
    sys.modules.pop("keyring", None)


def test_the_keyring_holds_the_renewal_token_and_no_file_does(
    server: SigninServer, authority: str, keyring: Path
) -> None:
    assert login(server, authority, "--store", "keyring") == 0
    (renewal,) = server.renewals
    assert renewal in keyring.read_text()
    folder = Path(GatewayAccount(server.url).path("session")).parent
    assert not any(renewal.encode() in path.read_bytes() for path in folder.iterdir())
    Path(GatewayAccount(server.url).path("token")).unlink()
    assert Turn(GatewayAccount(server.url)).credential().token is not None
    assert renewal not in keyring.read_text()
    assert main(["logout"]) == 0
    assert json.loads(keyring.read_text()) == {}


def test_without_a_keyring_nobody_signs_in_in_vain(
    server: SigninServer, authority: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert login(server, authority, "--store", "keyring") == 1
    assert "library-missing" in capsys.readouterr().err
    assert server.count.total() == 0


# --- turns ---


def test_a_failure_is_remembered_for_five_minutes(server: SigninServer, ca: trustme.CA, clock: FakeClock) -> None:
    server.methods = PASSWORD
    authorities_pem = ca.cert_pem.bytes().decode()

    def turn(*answers: str) -> Turn:
        return Turn(
            GatewayAccount(server.url), Wishes(), Somebody(*answers), authorities_pem=authorities_pem, clock=clock
        )

    with pytest.raises(LoginRefused):
        turn(*["ann", "wrong"] * 3).credential()
    with pytest.raises(CredentialError, match="refused the sign-in"):
        turn().credential()
    clock.advance(minutes=5)
    assert turn("ann", "pässword").credential().token is not None


def test_a_session_that_is_over_is_not_renewed(server: SigninServer, authority: str) -> None:
    server.session_lifetime = timedelta(seconds=0)
    login(server, authority)
    assert Sessions(GatewayAccount(server.url)).session() is None
    Path(GatewayAccount(server.url).path("token")).unlink()
    with pytest.raises(CredentialError):
        Turn(GatewayAccount(server.url)).credential()
    assert server.count["POST /auth/renew"] == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 1, "store": 3}', "{"])
def test_a_broken_session_is_none(server: SigninServer, authority: str, text: str) -> None:
    login(server, authority)
    Path(GatewayAccount(server.url).path("session")).write_text(text)
    assert Sessions(GatewayAccount(server.url)).session() is None


def test_nothing_that_is_kept_or_raised_shows_a_token_by_accident(server: SigninServer, client: GatewayClient) -> None:
    grant = client.sign_in_directly("here")
    assert grant is not None
    shown = repr(grant)
    assert grant.token.reveal() not in shown
    assert grant.renewal.reveal() not in shown


def test_an_answer_that_is_none_is_told_and_not_quoted(subtests: pytest.Subtests, ca: trustme.CA) -> None:
    for body in ["", "[]", "{}", "null", '{"token": 3}', '{"token": "a b"}']:
        with subtests.test(body=body), HttpServer(Response(body=body.encode()), tls=ca).running() as running:
            client = GatewayClient(running.url, authorities_pem=ca.cert_pem.bytes().decode())
            with pytest.raises((ProviderError, ConfigurationError)) as caught:
                client.sign_in_directly("here")
            assert isinstance(caught.value, OstiaryError)
            assert caught.value.code == "gateway-answer-invalid"


@pytest.mark.parametrize("what", ["fails", "forgets"])
def test_a_keyring_that_keeps_nothing_is_found_out_before_anybody_signs_in(
    server: SigninServer, authority: str, capsys: Captured, keyring: Path, what: str
) -> None:
    """The library is there, and no keyring behind it: as on a machine without a desktop."""
    broken = "raise RuntimeError" if what == "fails" else "return None"
    words = "".join(
        f"def {name}(*words):\n    {broken}\n" for name in ("set_password", "get_password", "delete_password")
    )
    (keyring.parent / "keyring.py").write_text(words)
    assert login(server, authority, "--store", "keyring") == 1
    assert "the keyring cannot be used" in capsys.readouterr().err
    assert server.count.total() == 0


def test_a_session_that_cannot_be_kept_does_not_live_on_at_the_gateway(
    server: SigninServer, authority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object, **parts: object) -> None:
        raise ConfigurationError("the disk is full")

    monkeypatch.setattr(Sessions, "save", refuse)
    assert login(server, authority) == 1
    assert server.count["POST /auth/logout"] == 1
