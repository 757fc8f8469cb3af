"""The doctor finds what is wrong with a proxy, and finds nothing wrong with what ``ostiary door`` prints."""

from __future__ import annotations

import io
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ostiary.cli.doctor.command import CLASSES
from ostiary.cli.door.claim_patterns import regular_expression
from ostiary.cli.signin.sessions import FILE, GatewayAccount, Sessions, SignInGrant
from ostiary.gateway.doors.forward.claims import CLEARED, OVERWRITTEN
from ostiary.model import Secret
from tests.support.doctor import KINDS, SECRET, Clinic, clinic, haproxy
from tests.support.doors import TOKEN_HASH_MODULES, running
from tests.support.gateway import InProcessGateway
from tests.support.ports import free_port
from tests.support.tiers import missing

pytestmark = [pytest.mark.needs("nginx", "haproxy"), pytest.mark.timeout(240)]
HTTP2 = {"http2-no-token", "http2-identity", "http2-lines", "http2-smuggling", "http2-paths"}
DENIED = ("--denied", "/admin", "--denied", "POST /read-only")


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    with clinic(tmp_path_factory.mktemp("doctor")) as made:
        yield made


# --- what is shipped ---


@pytest.mark.parametrize("proxy", KINDS)
def test_a_printed_configuration_is_sound(ward: Clinic, proxy: str, tmp_path: Path) -> None:
    port = free_port()
    with running(proxy, tmp_path / proxy, ward.printed(proxy, port), port):
        options = ("--gateway", ward.gateway.url(), "--door", f"{proxy}/shop")
        examined = ward.examine(f"http://127.0.0.1:{port}", *DENIED, *options)
    assert (examined.names("fail"), examined.names("warn")) == (set(), set())
    # nginx speaks HTTP/2 only where it is told to.
    assert examined.names("not-tested") == {"cookie-leak", "fail-open", *(HTTP2 if proxy == "nginx" else ())}
    assert examined.code == 0
    assert examined.report["proxy"] == proxy.removesuffix("-grpc")
    assert examined.report["requests"] < 400


def test_the_built_in_proxy_is_sound(ward: Clinic) -> None:
    url = f"https://localhost:{ward.gateway.port}"
    examined = ward.examine(url, *DENIED, "--gateway", url, "--door", "nginx/shop", host="localhost")
    assert examined.names("fail") == set(), examined.report
    assert examined.report["proxy"] == "ostiary"
    assert examined.names("warn") == set()
    assert examined.names("not-tested") == {"fail-open", "door-exposed", *HTTP2}


def test_over_tls_and_http2_it_is_sound_too(ward: Clinic, tmp_path: Path) -> None:
    port, secure = free_port(), free_port()
    folder = ward.site.folder
    listen = (
        f"listen 127.0.0.1:{port};\n    listen 127.0.0.1:{secure} ssl http2;\n"
        f"    ssl_certificate {folder}/server.pem;\n    ssl_certificate_key {folder}/server.key;"
    )
    text = ward.printed("nginx", port).replace(f"listen 127.0.0.1:{port};", listen)
    with running("nginx", tmp_path / "nginx", text, port):
        examined = ward.examine(f"https://localhost:{secure}", *DENIED, host="localhost")
    assert (examined.names("fail"), examined.names("warn")) == (set(), set()), examined.report
    assert examined.names("pass") >= HTTP2


# --- what people get wrong ---


@dataclass(frozen=True)
class Mistake:
    """A configuration as printed, but for one mistake; and the checks that must find it."""

    name: str
    proxy: str
    found_by: set[str]
    changes: tuple[tuple[str, str], ...]
    options: tuple[str, ...] = ()


# Envoy takes a second to hang up on whoever breaks the rules of HTTP/2.
NOT_HTTP2 = tuple(word for group in CLASSES if group != "http2" for word in ("--only", group))
ASKS = "    location = /_ostiary/"
GATEWAY = "upstream ostiary_gateway"
OPEN = "{ proxy_pass http://ostiary_to_shop; }"
MISTAKES = (
    Mistake(
        "nginx passes underscores, and does not show them to the gateway",
        "nginx",
        {"identity-headers", "identity-spellings", "identity-prefixes", "impersonation"},
        (
            ("large_client_header_buffers 4 32k;", "underscores_in_headers on;"),
            ("proxy_pass_request_body off;", "proxy_pass_request_body off; proxy_pass_request_headers off;"),
            (
                "proxy_set_header Host localhost",
                "proxy_set_header Authorization $http_authorization;\n        proxy_set_header Host localhost",
            ),
        ),
    ),
    Mistake(
        "nginx asks about the path of the question",
        "nginx",
        {"denied"},
        (("X-Original-URI $request_uri", "X-Original-URI $uri"),),
    ),
    Mistake(
        "nginx asks about the normalised path, and forwards the other one",
        "nginx",
        {"path-dots", "path-slashes", "path-target"},
        (
            ("X-Original-URI $request_uri", "X-Original-URI $asked"),
            ("        auth_request /_ostiary/", "        set $asked $uri;\n        auth_request /_ostiary/"),
        ),
    ),
    Mistake(
        "nginx believes what a client says of its path",
        "nginx",
        {"source-path"},
        (
            ("X-Original-URI $request_uri", "X-Original-URI $asked"),
            (
                GATEWAY,
                f"map $http_x_original_uri $asked {{ '' $request_uri; default $http_x_original_uri; }}\n{GATEWAY}",
            ),
        ),
    ),
    Mistake(
        "nginx believes what a client says of its method",
        "nginx",
        {"source-method"},
        (
            ("X-Original-Method $request_method", "X-Original-Method $asked"),
            (GATEWAY, f"map $http_x_original_method $asked {{ '' $request_method; default GET; }}\n{GATEWAY}"),
        ),
    ),
    Mistake(
        "nginx does not ask in one location",
        "nginx",
        {"no-token-elsewhere"},
        ((ASKS, f"    location /files {OPEN}\n{ASKS}"),),
        ("--path", "/", "--path", "/files/a"),
    ),
    Mistake(
        "nginx lets preflights pass",
        "nginx",
        {"no-token"},
        (
            (
                ASKS,
                f"    location @preflight {OPEN}\n    error_page 418 = @preflight;\n"
                f"    if ($request_method = OPTIONS) {{ return 418; }}\n{ASKS}",
            ),
        ),
    ),
    Mistake("nginx passes the token on", "nginx", {"token-leak"}, (('proxy_set_header Authorization "";', ""),)),
    Mistake(
        "nginx lets clients ask at the door",
        "nginx",
        {"door-through-proxy"},
        (("internal;", ""),),
        ("--door", "nginx/shop"),
    ),
    Mistake(
        "nginx passes every upgrade",
        "nginx",
        {"smuggling-h2c"},
        (
            ("proxy_set_header Upgrade $ostiary_upgrade", "proxy_set_header Upgrade $http_upgrade"),
            ("proxy_set_header Connection $ostiary_connection", 'proxy_set_header Connection "upgrade"'),
        ),
    ),
    Mistake(
        "nginx adds to what a client says of its address",
        "nginx",
        {"address-headers"},
        (("X-Forwarded-For $remote_addr", "X-Forwarded-For $proxy_add_x_forwarded_for"),),
    ),
    Mistake(
        "Traefik believes what a client says of its path",
        "traefik",
        {"source-path", "source-method", "address-headers"},
        (
            ("trustForwardHeader: false", "trustForwardHeader: true"),
            ("--entryPoints.web.address", "--entryPoints.web.forwardedHeaders.insecure=true --entryPoints.web.address"),
        ),
    ),
    Mistake(
        "Traefik takes only the usual spelling from the answer",
        "traefik",
        {
            *("identity-headers", "identity-spellings", "identity-others", "identity-prefixes", "override-headers"),
            *("token-leak", "secret-leak", "address-headers", "http2-identity"),
        },
        (("authResponseHeadersRegex: '(?i)^", "authResponseHeadersRegex: '^(X-Remote-(User|Uid|Group))$' #"),),
    ),
    Mistake(
        "Caddy takes out no headers",
        "caddy",
        {"identity-others", "override-headers", "address-headers", "http2-identity"},
        (("request_header -x-", "#"), ("request_header -remote", "#")),
    ),
    Mistake(
        "Caddy keeps the client's Connection",
        "caddy",
        {"identity-hop-by-hop"},
        (("request_header @shop-switches", "#"), ("request_header @shop-stays", "#")),
    ),
    Mistake("Caddy passes the token on", "caddy", {"token-leak"}, (("request_header -Authorization", ""),)),
    Mistake(
        "Envoy passes underscores",
        "envoy",
        {"identity-spellings"},
        (
            ("headers_with_underscores_action: DROP_HEADER", "headers_with_underscores_action: ALLOW"),
            ("regex: 'x[^a-z0-9]remote[^a-z0-9]", "regex: 'x-remote-"),
        ),
        NOT_HTTP2,
    ),
    Mistake(
        "Envoy takes out no headers, and passes the token on",
        "envoy",
        {
            "identity-headers",
            "identity-prefixes",
            "identity-others",
            "identity-spellings",
            "override-headers",
            "token-leak",
            "address-headers",
        },
        (("- {remove: ", "#"), ("- {remove_on_match: ", "#")),
        NOT_HTTP2,
    ),
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found(ward: Clinic, mistake: Mistake, tmp_path: Path) -> None:
    port = free_port()
    text = ward.printed(mistake.proxy, port)
    for right, wrong in mistake.changes:
        assert right in text
        text = text.replace(right, wrong)
    with running(mistake.proxy, tmp_path / mistake.proxy, text, port):
        examined = ward.examine(f"http://127.0.0.1:{port}", *DENIED, *mistake.options)
    assert examined.names("fail") | examined.names("warn") == mistake.found_by, examined.report
    assert examined.code == (0 if mistake.found_by == {"address-headers"} else 1)
    for name in mistake.found_by:
        finding = examined.finding(name)
        assert finding["seen"]
        assert finding["fix"]
        assert finding["fix"][-1].startswith("or print the whole configuration again: ostiary door")


CLAIMS = regular_expression([*CLEARED, *OVERWRITTEN])


def test_haproxy_that_takes_out_no_headers_is_found(ward: Clinic, tmp_path: Path) -> None:
    with haproxy(ward, tmp_path / "open") as url:
        examined = ward.examine(url, *DENIED)
    assert examined.report["proxy"] == "haproxy"
    missed = {"identity-headers", "identity-spellings", "identity-others", "identity-prefixes", "impersonation"}
    missed |= {"http2-identity"}
    assert missed | {"override-headers", "token-leak", "identity-trailers", "smuggling-h2c"} == examined.names("fail")

    assert "  http-request del-header x-http-method-override" in examined.finding("override-headers")["fix"]
    assert "x-webauth-user" in examined.finding("identity-others")["headers"]


def test_haproxy_can_be_made_sound(ward: Clinic, tmp_path: Path) -> None:
    lines = (
        f"http-request del-header {CLAIMS} -m reg",
        "http-request deny if { req.hdr(upgrade) -m found }",
        "http-request deny if { req.hdr(transfer-encoding) -m found }",
    )
    with haproxy(ward, tmp_path / "shut", "\n    ".join(lines)) as url:
        examined = ward.examine(url, *DENIED)
    assert (examined.names("fail"), examined.names("warn")) == (set(), set()), examined.report


def test_a_proxy_that_passes_bytes_without_reading_them_is_found(ward: Clinic, tmp_path: Path) -> None:
    with haproxy(ward, tmp_path / "raw", raw=True) as url:
        examined = ward.examine(url, "--proxy", "haproxy", "--denied", "/admin")
    smuggling = {"smuggling-both", "smuggling-transfer-encoding", "smuggling-content-length", "smuggling-h2c"}
    others = {"no-token", "garbage-token", "user", "token-leak", "denied", "host", "identity-odd-lines"}
    assert smuggling | others <= examined.names("fail")
    assert (
        "CL.TE: the request inside of the body arrived as one of its own" in examined.finding("smuggling-both")["seen"]
    )


def test_a_door_that_answers_anybody_is_found(ward: Clinic, tmp_path: Path) -> None:
    port, open_port = free_port(), free_port()
    more = (
        f"server {{ listen 127.0.0.1:{open_port}; location /doors/ {{ proxy_pass {ward.gateway.url()};"
        f' proxy_set_header X-Ostiary-Door "{SECRET}"; }} }}'
    )
    with running("nginx", tmp_path / "nginx", f"{ward.printed('nginx', port)}\n{more}", port):
        options = ("--gateway", f"http://127.0.0.1:{open_port}", "--door", "nginx/shop", "--expect-user", "alice")
        examined = ward.examine(f"http://127.0.0.1:{port}", *options)
    assert examined.names("fail") == {"door-secret"}


def test_another_user_than_that_of_the_token_is_found(ward: Clinic, tmp_path: Path) -> None:
    port = free_port()
    with running("nginx", tmp_path / "nginx", ward.printed("nginx", port), port):
        examined = ward.examine(f"http://127.0.0.1:{port}", "--expect-user", "bob")
    assert examined.finding("user")["seen"] == ['X-Remote-User was "alice", and the token is of "bob"']
    assert "needs a path that this user may not use" in str(examined.finding("path-dots")["seen"])


# --- while the gateway is down ---


class StopsTheGateway:
    """The operator at the terminal: stops the gateway, and presses Enter."""

    def __init__(self, gateway: InProcessGateway) -> None:
        self._gateway = gateway

    def readline(self) -> str:
        self._gateway.stop()
        return "\n"


OUTAGES = (
    ("nginx", (), "pass"),
    ("traefik", (), "pass"),
    ("caddy", (), "pass"),
    ("envoy", (), "pass"),
    (
        "nginx",
        (
            ("error_page 500 = @ostiary_unavailable", "error_page 500 = @open"),
            (ASKS, f"    location @open {OPEN}\n{ASKS}"),
        ),
        "fail",
    ),
    ("envoy", (("failure_mode_allow: false", "failure_mode_allow: true"),), "fail"),
)


@pytest.mark.parametrize(("proxy", "changes", "result"), OUTAGES)
def test_who_is_let_in_while_the_gateway_is_down_is_found(
    proxy: str,
    changes: tuple[tuple[str, str], ...],
    result: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    with clinic(tmp_path) as own:
        text = own.printed(proxy, port)
        for right, wrong in changes:
            assert right in text
            text = text.replace(right, wrong)
        monkeypatch.setattr("sys.stdin", StopsTheGateway(own.gateway))
        with running(proxy, tmp_path / proxy, text, port):
            examined = own.examine(f"http://127.0.0.1:{port}", "--while-gateway-down", "--only", "outage")
    assert examined.finding("fail-open")["result"] == result, examined.report
    assert "stop the gateway now" in examined.stderr


def test_a_gateway_that_still_runs_is_not_taken_for_one_that_is_down(
    ward: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with running("nginx", tmp_path / "nginx", ward.printed("nginx", port), port):
        examined = ward.examine(f"http://127.0.0.1:{port}", "--while-gateway-down")
    assert examined.finding("fail-open")["result"] != "pass"


# --- what it refuses ---


def test_nothing_hostile_is_sent_to_a_proxy_that_does_not_lead_to_the_echo(ward: Clinic) -> None:
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_answer_one, args=(server, requests))
        thread.start()
        examined = ward.examine(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join(30)
    assert examined.code == 1
    assert json.loads(examined.stderr.partition("\n")[2])["error"]["code"] == "echo-not-reached"
    assert len(requests) == 1
    assert requests[0].startswith(b"GET /?doctor=")


def _answer_one(server: socket.socket, requests: list[bytes]) -> None:
    connection, _ = server.accept()
    with connection:
        requests.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


def test_a_port_that_is_taken_is_told(ward: Clinic) -> None:
    with socket.create_server(("127.0.0.1", ward.echo_port)):
        examined = ward.examine("http://127.0.0.1:1")
    assert json.loads(examined.stderr)["error"]["code"] == "echo-unusable"


def test_a_proxy_that_is_not_there_is_told(ward: Clinic) -> None:
    examined = ward.examine(f"http://127.0.0.1:{free_port()}")
    assert examined.code == 1
    assert '"proxy-unreachable"' in examined.stderr


def test_the_report_for_a_person_says_what_arrived_and_how_to_shut_it(ward: Clinic, tmp_path: Path) -> None:
    port = free_port()
    text = ward.printed("nginx", port).replace('proxy_set_header Authorization "";', "")
    with running("nginx", tmp_path / "nginx", text, port):
        report = ward.report(f"http://127.0.0.1:{port}")
    assert "\nwhat the application learns\n  FAIL        token-leak" in report
    assert "the token arrived in Authorization" in report
    assert '  proxy_set_header Authorization "";' in report
    assert "NOT TESTED  path-dots                    needs a path" in report
    assert f"http://127.0.0.1:{port} (nginx): " in report
    assert ward.token_file.read_text().strip() not in report


def test_a_proxy_with_another_backend_beside_the_echo_is_not_examined(ward: Clinic, tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    backends = f"server 127.0.0.1:{ward.echo_port};\n    server 127.0.0.1:{other};"
    text = ward.printed("nginx", port).replace(f"server 127.0.0.1:{ward.echo_port};", backends)
    text += f"\nserver {{ listen 127.0.0.1:{other}; return 200; }}\n"
    with running("nginx", tmp_path / "nginx", text, port):
        examined = ward.examine(f"http://127.0.0.1:{port}")
    assert '"echo-not-reached"' in examined.stderr
    assert "who is let in" not in examined.stderr


def test_nginx_with_a_cache_is_sound_too(ward: Clinic, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (njs,) = TOKEN_HASH_MODULES["njs"]
    if not njs.exists():
        missing("njs (libnginx-mod-http-js)")
    port = free_port()
    # A directory of this test, where nginx finds it as another user, too.
    cache = Path(f"/dev/shm/ostiary-test-{port}")
    request.addfinalizer(lambda: shutil.rmtree(cache, ignore_errors=True))
    text = ward.printed("nginx", port, "--cache", "60s").replace("/dev/shm/ostiary-nginx", str(cache))
    with running("nginx", tmp_path / "nginx", text, port):
        examined = ward.examine(f"http://127.0.0.1:{port}", *DENIED)
    assert (examined.names("fail"), examined.names("warn")) == (set(), set()), examined.report


def test_the_token_is_that_of_the_session_and_the_gateway_says_whose_it_is(
    ward: Clinic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    later = datetime.now(UTC) + timedelta(minutes=10)
    token, authorities_pem = ward.token_file.read_text().strip(), (ward.site.folder / "ca.pem").read_text()
    grant = SignInGrant(Secret(token), later, Secret("renewal"), "session", later, "alice")
    Sessions(GatewayAccount(ward.gateway.url())).save(grant, store=FILE, authorities_pem=authorities_pem)
    port = free_port()
    with running("nginx", tmp_path / "nginx", ward.printed("nginx", port), port):
        examined = ward.examine(
            f"http://127.0.0.1:{port}", "--server", ward.gateway.url(), "--only", "user", with_token_file=False
        )
    assert examined.finding("user")["result"] == "pass", examined.stderr
    assert examined.names("fail") == set()
    assert token not in examined.stderr + json.dumps(examined.report)
