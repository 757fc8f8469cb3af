"""``ostiary-gateway door``: what is printed for which gateway.yaml, and what is told where something is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary_gateway.cli import main
from ostiary_gateway.cli.proxy_config.layout import any_spelling

SECRET = "0123456789abcdef"
# Those that can carry web applications, and all.
BROWSER_KINDS = ("nginx", "traefik", "caddy", "envoy", "gateway-api")
KINDS = (*BROWSER_KINDS, "envoy-grpc")
SHOP = {"name": "shop", "attributes": "http", "hosts": ["shop.example", "www.shop.example"]}
API = {"name": "api", "attributes": "http", "hosts": ["shop.example"], "prefix": "/api"}
BACKENDS = ("--backend", "shop=http://127.0.0.1:9001", "--backend", "api=http://127.0.0.1:9002")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET + "\n")
    return tmp_path


def write(folder: Path, *doors: dict[str, Any], **more: Any) -> Path:
    entries = doors or tuple({"name": f"door-{kind}", "proxy": kind} for kind in KINDS)
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {
            "address": "127.0.0.1:8443",
            "grpc": {"address": "127.0.0.1:8445"},
            "dropHeaders": ["X-Mine", "X-Ours-*"],
        },
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all", "upstreams": "all"}]},
        "upstreams": [SHOP, API],
        "doors": [{"callers": {"tokenFile": "secret"}, "extra": ["scope"], **door} for door in entries],
        **more,
    }
    path = folder / "gateway.yaml"
    path.write_text(json.dumps(text))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["door", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_printed_presents_the_secret_and_names_both_upstreams_and_all_headers(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, notes = run(capsys, kind, "--config", str(write(folder)), *BACKENDS)
    assert code == 0
    assert SECRET in text
    assert SECRET not in notes
    paths = ("/doors/door-" + kind + "/shop", "/doors/door-" + kind + "/api")
    for part in (*(paths if kind != "envoy-grpc" else ()), "9001", "9002", "/api"):
        assert part in text
    # The gateway itself names the headers where they are not listed.
    if kind not in ("traefik", "envoy-grpc"):
        for name in ("x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-scope"):
            assert name in text.lower()
    if kind != "gateway-api":
        assert "x-mine" in text.lower() or any_spelling("x-mine") in text
        assert "impersonate" in text.lower()
    assert "authorization" in text.lower()
    assert not any(line.endswith((" ", "\t")) for line in text.splitlines())


@pytest.mark.parametrize("kind", ["traefik", "envoy", "envoy-grpc", "gateway-api"])
def test_what_is_yaml_can_be_read(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, kind, "--config", str(write(folder)), *BACKENDS)
    assert all(isinstance(document, dict) for document in yaml.safe_load_all(text) if document is not None)


def test_an_envoy_route_switches_off_only_the_questions_of_other_upstreams(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = run(capsys, "envoy", "--config", str(write(folder)), *BACKENDS)
    (listener,) = yaml.safe_load(text)["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    for host in manager["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            name = route["route"]["cluster"].removeprefix("ostiary-to-")
            assert f"ostiary-{name}" not in route["typed_per_filter_config"]
            assert len(route["typed_per_filter_config"]) == 1


APP = {"name": "app", "attributes": "http", "hosts": ["app.example"], "auth": "browser", "identity": "assertion"}


def write_application(folder: Path, **more: Any) -> Path:
    (folder / "issuer-secret").write_text("0" * 64)
    (folder / "issuer-secret").chmod(0o600)
    doors = [{"name": f"door-{kind}", "proxy": kind, "port": 8080, **more} for kind in BROWSER_KINDS]
    issuer = {"audiences": ["prod"], "keys": {"secretFile": "issuer-secret"}}
    sections = {"externalURL": "http://localhost:8443", "issuer": issuer, "store": {"type": "sqlite", "path": "db"}}
    return write(folder, *doors, upstreams=[SHOP, APP], **sections)


APP_BACKENDS = (*BACKENDS[:2], "--backend", "app=http://127.0.0.1:9003")


@pytest.mark.parametrize("kind", BROWSER_KINDS)
def test_for_a_web_application_the_way_back_is_printed_and_cookies_are_cleaned(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run(capsys, kind, "--config", str(write_application(folder)), *APP_BACKENDS)
    assert code == 0, error
    assert "at http://app.example:8080," in error
    assert "/auth/application" in text
    assert "/auth/logout" in text
    if kind != "gateway-api":
        assert "app.example:8080" in text, "the host as browsers write it"
    assert "cookie" in text.lower()
    if kind != "traefik":
        assert "x-ostiary-assertion" in text.lower()
    if kind in ("envoy", "gateway-api"):
        for name in ("cookie", "origin", "accept", "sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest"):
            assert name in text.lower()
    assert not any(line.endswith((" ", "\t")) for line in text.splitlines())
    if kind in ("traefik", "envoy", "gateway-api"):
        assert all(isinstance(document, dict) for document in yaml.safe_load_all(text) if document is not None)
    _, without, _ = run(capsys, kind, "--config", str(write(folder)), *BACKENDS)
    assert "/auth/" not in without
    assert "ookie" not in without


@pytest.mark.parametrize("kind", ["nginx", "traefik", "caddy", "envoy"])
def test_the_way_back_presents_neither_secret_nor_certificate_of_the_proxy(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever comes that way is a client, and no proxy."""
    files = ("--ca", "/etc/ca.pem", "--certificate", "/etc/proxy.pem", "--key", "/etc/proxy.key")
    words = (kind, "--config", str(write_application(folder)), "--gateway", "https://gw.example:8443", *files)
    _, text, _ = run(capsys, *words, *APP_BACKENDS)
    _, without, _ = run(
        capsys,
        kind,
        "--config",
        str(write(folder)),
        *words[3:],
        *BACKENDS[:2],
        "--backend",
        "api=http://127.0.0.1:9003",
    )
    assert text.count("/etc/proxy.pem") == without.count("/etc/proxy.pem")
    assert text.count(SECRET) == without.count(SECRET)
    assert text.count("/etc/ca.pem") > without.count("/etc/ca.pem")


def test_answers_with_the_cookies_of_browsers_are_not_cached(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("nginx", "--config", str(write_application(folder)), "--cache", "5s", *APP_BACKENDS)
    code, text, error = run(capsys, *words)
    assert (code, text) == (2, "")
    assert "web applications" in error


def test_an_envoy_route_says_over_grpc_which_door_is_asked_and_where_it_leads(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = run(capsys, "envoy-grpc", "--config", str(write(folder)), *BACKENDS)
    resources = yaml.safe_load(text)["static_resources"]
    (listener,) = resources["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    (question,) = [each for each in manager["http_filters"] if "ext_authz" in each["typed_config"]["@type"]]
    settings = question["typed_config"]
    assert (settings["failure_mode_allow"], settings["encode_raw_headers"]) == (False, True)
    assert settings["status_on_error"] == {"code": "ServiceUnavailable"}
    assert settings["grpc_service"]["initial_metadata"] == [{"key": "x-ostiary-door", "value": SECRET}]
    for host in manager["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            context = route["typed_per_filter_config"][question["name"]]["check_settings"]["context_extensions"]
            upstream = route["route"]["cluster"].removeprefix("ostiary-to-")
            assert context == {"ostiary-door": "door-envoy-grpc", "ostiary-upstream": upstream}
    gateway = next(each for each in resources["clusters"] if each["name"] == "ostiary-gateway")
    (endpoint,) = gateway["load_assignment"]["endpoints"][0]["lb_endpoints"]
    assert endpoint["endpoint"]["address"]["socket_address"]["port_value"] == 8445
    assert "http2_protocol_options" in str(gateway)


def test_a_gateway_with_tls_is_verified_and_a_certificate_presented(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--ca", "/etc/ca.pem", "--certificate", "/etc/proxy.pem", "--key", "/etc/proxy.key")
    for kind in ("nginx", "traefik", "caddy", "envoy", "envoy-grpc"):
        words = (kind, "--config", str(write(folder)), "--gateway", "https://gw.example:8443", *BACKENDS, *files)
        code, text, _ = run(capsys, *words)
        assert code == 0
        assert all(file in text for file in files[1::2]), kind


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "where does the proxy find the upstream"),
        (("--backend", "shop=http://x:1", "--backend", "nothing=http://x:1"), "api"),
        ((*BACKENDS, "--backend", "nothing=http://x:1"), 'no upstream "nothing"'),
        ((*BACKENDS, "--listen", "nowhere"), "--listen"),
        ((*BACKENDS, "--gateway", "https://gw.example"), "CA certificate"),
        ((*BACKENDS, "--gateway", "gw"), "--gateway"),
        ((*BACKENDS, "--certificate", "x"), "go together"),
        ((*BACKENDS, "--cache", "soon"), "duration"),
        ((*BACKENDS, "--door", "other"), 'called "other"'),
    ],
)
def test_what_is_missing_is_told(
    folder: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run(capsys, "nginx", "--config", str(write(folder)), *words)
    assert code != 0
    assert text == ""
    assert said in error
    assert SECRET not in error


def test_of_two_doors_for_one_proxy_one_must_be_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(folder, {"name": "one", "proxy": "nginx"}, {"name": "two", "proxy": "nginx"})
    code, _, error = run(capsys, "nginx", "--config", str(config), *BACKENDS)
    assert (code, "one, two" in error) == (2, True)
    code, text, _ = run(capsys, "nginx", "--config", str(config), "--door", "two", *BACKENDS)
    assert (code, "/doors/two/shop" in text) == (0, True)


@pytest.mark.parametrize("secret", ["", 'a"b', "a b", "a$b", "a\nb", "a'b"])
def test_a_secret_that_means_something_to_a_proxy_is_refused_and_not_quoted(
    folder: Path, secret: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(folder)
    (folder / "secret").write_text(secret)
    code, text, error = run(capsys, "nginx", "--config", str(config), *BACKENDS)
    assert (code, text) == (1, "")
    assert "openssl rand" in error
    assert not secret or secret not in error


@pytest.mark.parametrize(
    ("token_hash", "hashing"), [("njs", "js_set $ostiary_token"), ("set-misc", "set_sha1 $ostiary_token")]
)
def test_with_a_cache_the_token_is_hashed_and_only_listed_headers_pass(
    folder: Path, capsys: pytest.CaptureFixture[str], token_hash: str, hashing: str
) -> None:
    options = ("--cache", "5s", "--token-hash", token_hash)
    _, text, _ = run(capsys, "nginx", "--config", str(write(folder)), *options, *BACKENDS)
    assert hashing in text
    assert "proxy_cache_valid 200 5s;" in text
    assert "proxy_pass_request_headers off;" in text
    key = next(line for line in text.splitlines() if "proxy_cache_key" in line)
    assert "$ostiary_token" in key
    assert "authorization" not in key
    _, script, _ = run(capsys, "nginx", "--key-script")
    assert "sha256" in script


ODD_NAMES = ("secret", "cookies", "gateway", "sign-in", "plain", "websocket", "shop-websocket", "shop-cookies", "shop")


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_of_an_upstream_is_one_of_our_own(folder: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A key that stands twice would silently be one of the two."""
    auth = "browser" if kind in BROWSER_KINDS else "token"
    upstreams = [{**SHOP, "name": name, "hosts": [f"{name}.example"], "auth": auth} for name in ODD_NAMES]
    config = write(folder, {"name": "door", "proxy": kind}, upstreams=upstreams, externalURL="http://localhost:8443")
    backends = [word for name in ODD_NAMES for word in ("--backend", f"{name}=http://127.0.0.1:9001")]
    code, text, error = run(capsys, kind, "--config", str(config), *backends)
    assert code == 0, error
    if kind in ("traefik", "envoy", "envoy-grpc", "gateway-api"):
        for node in filter(None, yaml.compose_all(text)):
            assert duplicates(node) == []
    if kind == "caddy":
        names = re.findall(r"^\s*(@\S+) (?:path|header)", text, re.MULTILINE)
        per_site = [site.split() for site in "\n".join(names).replace("@SignIn-auth-application", "|").split("|")]
        assert all(len(site) == len(set(site)) for site in per_site)


def duplicates(node: yaml.Node) -> list[str]:
    if isinstance(node, yaml.SequenceNode):
        return [key for each in node.value for key in duplicates(each)]
    if not isinstance(node, yaml.MappingNode):
        return []
    keys = [key.value for key, _ in node.value]
    inner = [key for _, value in node.value for key in duplicates(value)]
    return [key for key in keys if keys.count(key) > 1] + inner


def test_a_client_cannot_have_caddy_take_out_who_the_user_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "caddy", "--config", str(write(folder)), *BACKENDS)
    lines = [line.strip() for line in text.splitlines()]
    steps = ("stays -Connection", "switches Connection Upgrade")
    for upstream in ("shop", "api"):
        stays, switches = (lines.index(f"request_header @{upstream}-{step}") for step in steps)
        assert stays < switches < lines.index(f"uri /doors/door-caddy/{upstream}")


def test_envoy_takes_out_a_claim_in_every_spelling(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, "envoy", "--config", str(write(folder)), *BACKENDS)
    patterns = re.findall(r"safe_regex: {regex: '([^']+)'}", text)
    for name in ("x-remote-user", "x.remote.user", "x_remote~extra!a", "x-forwarded-user", "remote.user", "x.mine"):
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name
    for name in ("accept", "authorization", "impersonate-user", "cookie", "x-forwarded-for", "x-mine2"):
        assert not any(re.fullmatch(pattern, name) for pattern in patterns), name


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("nginx", 'location ~ "^/api(/|$)" {'),
        ("traefik", "(Path(`/api`) || PathPrefix(`/api/`))"),
        ("caddy", "@api path_regexp ^/api(/|$)"),
        ("envoy", "path_separated_prefix: /api"),
    ],
)
def test_a_prefix_is_whole_segments(folder: Path, kind: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run(capsys, kind, "--config", str(write(folder)), *BACKENDS)
    assert line in text


# --- IPv6 ---

AGENT = {"agent": {"address": "[::1]:9345"}}
# Where each proxy is told to find the upstream, in the form that it reads.
UPSTREAM_AT = {
    "nginx": "    server [2001:db8::5]:9001;\n",
    "traefik": "          - url: 'http://[2001:db8::5]:9001'\n",
    "caddy": "reverse_proxy http://[2001:db8::5]:9001\n",
    "envoy": "{socket_address: {address: '2001:db8::5', port_value: 9001}}",
    "envoy-grpc": "{socket_address: {address: '2001:db8::5', port_value: 9001}}",
    "gateway-api": "    - {name: '2001:db8::5', port: 9001}\n",
    "haproxy": "    server shop [2001:db8::5]:9001\n",
}
# And where it is told to find the gateway.
GATEWAY_AT = {
    "nginx": "    server [2001:db8::4]:8443;\n",
    "traefik": "address: 'http://[2001:db8::4]:8443/doors/",
    "caddy": "forward_auth http://[2001:db8::4]:8443 {\n",
    "envoy": "{socket_address: {address: '2001:db8::4', port_value: 8443}}",
    "envoy-grpc": "{socket_address: {address: '2001:db8::4', port_value: 8443}}",
    "gateway-api": "backendRef: {name: '2001:db8::4', port: 8443}\n",
    "haproxy": "    server gateway [2001:db8::4]:8443\n",
}
# And where to listen.
LISTEN_AT = {
    "nginx": "    listen [2001:db8::6]:8080;\n",
    "traefik": "--entryPoints.web.address=[2001:db8::6]:8080 ",
    "caddy": "\tbind 2001:db8::6\n",
    "envoy": "{socket_address: {address: '2001:db8::6', port_value: 8080}}",
    "envoy-grpc": "{socket_address: {address: '2001:db8::6', port_value: 8080}}",
    "haproxy": "    bind [2001:db8::6]:8080\n",
}


def printed_for_ipv6(folder: Path, kind: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    config = write(folder, {"name": "edge", "proxy": kind, **(AGENT if kind == "haproxy" else {})})
    places = ("--gateway", "http://[2001:db8::4]:8443", "--listen", "[2001:db8::6]:8080")
    code, text, error = run(capsys, kind, "--config", str(config), *places, *more, *BACKENDS[2:])
    assert code == 0, error
    return text


@pytest.mark.parametrize("kind", UPSTREAM_AT)
def test_an_ipv6_address_is_written_as_the_proxy_reads_it(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed_for_ipv6(folder, kind, capsys, "--backend", "shop=http://[2001:db8::5]:9001")
    assert UPSTREAM_AT[kind] in text
    assert GATEWAY_AT[kind] in text
    assert LISTEN_AT.get(kind, "") in text


@pytest.mark.parametrize("kind", UPSTREAM_AT)
def test_an_ipv6_address_without_a_port_gets_that_of_its_scheme(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # In brackets a port is a port; the last part of an address that begins with two colons must not become one.
    text = printed_for_ipv6(folder, kind, capsys, "--backend", "shop=http://[::1]")
    expected = UPSTREAM_AT[kind].replace("2001:db8::5", "::1")
    is_url = kind in ("traefik", "caddy")
    assert expected.replace(":9001", "" if is_url else ":80").replace(" 9001", " 80") in text


@pytest.mark.parametrize("kind", ["traefik", "envoy", "envoy-grpc", "gateway-api"])
@pytest.mark.parametrize("host", ["::1", "2001:db8::5", "::"])
def test_yaml_with_an_ipv6_address_can_be_read(
    folder: Path, kind: str, host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed_for_ipv6(folder, kind, capsys, "--backend", f"shop=http://[{host}]:9001")
    documents = [document for document in yaml.safe_load_all(text) if document is not None]
    assert documents
    if kind == "gateway-api":
        (shop,) = [each for each in documents if each["metadata"]["name"] == "shop"]
        assert shop["spec"]["rules"][-1]["backendRefs"] == [{"name": host, "port": 9001}]


def test_a_policy_of_the_gateway_api_for_an_ipv6_address_can_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--backend", "shop=https://[::1]:9001", "--backend-name", "shop=shop.example")
    text = printed_for_ipv6(folder, "gateway-api", capsys, *words)
    (policy,) = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "BackendTLSPolicy"]
    assert policy["spec"]["targetRefs"] == [{"group": "", "kind": "Service", "name": "::1"}]
