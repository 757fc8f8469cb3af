"""``ostiary-gateway door`` for upstreams with https: whose certificate each proxy is told to take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tests.unit.ostiary_gateway.cli.proxy_config.test_command import API, KINDS, SHOP, folder, run, write

__all__ = ["folder"]

HTTPS = ("--backend", "shop=https://shop.internal:9001", "--backend", "api=http://127.0.0.1:9002")
AT_ADDRESS = ("--backend", "shop=https://10.0.0.5:9001", *HTTPS[2:])
# What each has to say of the name in the certificate, and of the file of the authorities.
SAID = {
    "nginx": ("proxy_ssl_name {name};", "proxy_ssl_trusted_certificate {file};"),
    "traefik": ("serverName: '{name}'", "rootCAs: ['{file}']"),
    "caddy": ("tls_server_name {name}\n", "tls_trust_pool file {file}\n"),
    "envoy": ("[{{san_type: DNS, matcher: {{exact: '{name}'}}}}]", "trusted_ca: {{filename: '{file}'}}"),
    "envoy-grpc": ("[{{san_type: DNS, matcher: {{exact: '{name}'}}}}]", "trusted_ca: {{filename: '{file}'}}"),
    "gateway-api": ("hostname: {name}\n", "--from-file=ca.crt={file}\n"),
    "haproxy": ("sni str({name}) verifyhost {name}", "verify required ca-file {file} "),
}
HAPROXY = {"name": "door", "proxy": "haproxy", "agent": {"address": "127.0.0.1:9345"}}


def printed(capsys: pytest.CaptureFixture[str], folder: Path, kind: str, *words: str, **more: Any) -> tuple[str, str]:
    config = write(folder, *([HAPROXY] if kind == "haproxy" else []), **more)
    code, text, error = run(capsys, kind, "--config", str(config), *words)
    assert code == 0, error
    return text, error


def says(kind: str, text: str, *, name: str, file: str | None = None) -> bool:
    about_name, about_file = (each.format(name=name, file=file) for each in SAID[kind])
    return about_name in text and (file is None or about_file in text)


@pytest.mark.parametrize("kind", SAID)
def test_the_certificate_must_be_for_the_host_of_the_url(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = printed(capsys, folder, kind, *HTTPS)
    assert says(kind, text, name="shop.internal")
    plain, _ = printed(capsys, folder, kind, "--backend", "shop=http://shop.internal:9001", *HTTPS[2:])
    assert not says(kind, plain, name="shop.internal")


@pytest.mark.parametrize("kind", SAID)
def test_the_name_and_the_authorities_are_those_of_gateway_yaml(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trustme.CA().cert_pem.write_to_path(str(folder / "ca.pem"))
    tls = {"ca": "ca.pem", "serverName": "Shop.Example"}
    upstreams = [{**SHOP, "server": "https://10.0.0.5:9001", "tls": tls}, API]
    text, notes = printed(capsys, folder, kind, *HTTPS[2:], upstreams=upstreams)
    assert says(kind, text, name="shop.example", file=str(folder / "ca.pem"))
    assert "tls" not in notes


@pytest.mark.parametrize("kind", SAID)
def test_the_name_and_the_authorities_can_be_said_for_the_proxy(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--backend-ca", "shop=/etc/shop-ca.pem", "--backend-name", "shop=shop.example")
    text, _ = printed(capsys, folder, kind, *AT_ADDRESS, *options)
    assert says(kind, text, name="shop.example", file="/etc/shop-ca.pem")


@pytest.mark.parametrize("kind", SAID)
def test_an_address_is_compared_with_addresses_or_refused(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(folder, *([HAPROXY] if kind == "haproxy" else []))
    code, text, error = run(capsys, kind, "--config", str(config), *AT_ADDRESS)
    if kind in ("nginx", "gateway-api", "haproxy"):
        assert (code, text) == (2, "")
        assert "--backend-name shop=" in error
        return
    assert code == 0
    if kind.startswith("envoy"):
        assert "[{san_type: IP_ADDRESS, matcher: {exact: '10.0.0.5'}}]" in text
        assert "sni:" not in text
    else:
        assert says(kind, text, name="10.0.0.5")


@pytest.mark.parametrize("kind", ["envoy", "envoy-grpc"])
@pytest.mark.parametrize("url", ["https://[2001:db8::5]:9001", "https://[2001:DB8:0:0::5]:9001"])
def test_envoy_compares_an_ipv6_address_in_its_short_form(
    folder: Path, kind: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = printed(capsys, folder, kind, "--backend", f"shop={url}", *HTTPS[2:])
    assert "[{san_type: IP_ADDRESS, matcher: {exact: '2001:db8::5'}}]" in text
    assert "sni:" not in text


@pytest.mark.parametrize("kind", ["nginx", "gateway-api"])
def test_a_gateway_at_an_address_cannot_be_compared_with_names(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*HTTPS, "--gateway", "https://10.0.0.4:8443", "--ca", "/etc/ca.pem")
    code, text, error = run(capsys, kind, "--config", str(write(folder)), *words)
    assert (code, text) == (2, "")
    assert "names, and not with addresses" in error


@pytest.mark.parametrize("kind", KINDS)
def test_what_only_the_gateway_checks_or_presents_is_told(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    leaf = trustme.CA().issue_cert("gateway.example")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(folder / "own.pem"))
    tls = {"certificate": "own.pem", "key": "own.pem", "pins": ["ab" * 32]}
    upstreams = [{**SHOP, "server": "https://shop.internal", "tls": tls}, API]
    text, notes = printed(capsys, folder, kind, *HTTPS[2:], upstreams=upstreams)
    assert 'does not check tls.pins of the upstream "shop"' in notes
    assert 'no client certificate for the upstream "shop"' in notes
    assert "own.pem" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backend-ca", "api=/etc/ca.pem"), 'the upstream "api" has no certificate'),
        (("--backend-name", "api=api.example"), 'the upstream "api" has no certificate'),
        (("--backend-ca", "nothing=/etc/ca.pem"), 'no upstream "nothing"'),
        (("--backend-ca", "shop"), "--backend-ca"),
        (("--backend-name", "shop=a b;"), "not the name of a host"),
    ],
)
def test_what_has_no_effect_or_no_meaning_is_refused(
    folder: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run(capsys, "nginx", "--config", str(write(folder)), *HTTPS, *words)
    assert (code, text) == (2, "")
    assert said in error


def test_a_service_has_one_policy_however_many_routes_lead_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("--backend", "shop=https://shop:443", "--backend", "api=https://shop:443")
    text, _ = printed(capsys, folder, "gateway-api", *both)
    (policy,) = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "BackendTLSPolicy"]
    assert policy["spec"] == {
        "targetRefs": [{"group": "", "kind": "Service", "name": "shop"}],
        "validation": {"hostname": "shop", "wellKnownCACertificates": "System"},
    }
    authorities = [word for name in ("shop", "api") for word in ("--backend-ca", f"{name}=ca.pem")]
    text, _ = printed(capsys, folder, "gateway-api", *both, *authorities)
    (policy,) = [each for each in yaml.safe_load_all(text) if each and each["kind"] == "BackendTLSPolicy"]
    (reference,) = policy["spec"]["validation"]["caCertificateRefs"]
    assert reference == {"group": "", "kind": "ConfigMap", "name": f"{policy['metadata']['name']}-ca"}
