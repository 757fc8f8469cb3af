"""What ``ostiary-gateway door haproxy`` prints. Other tests run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ostiary_gateway.extauth.claims import cleared
from tests.unit.ostiary_gateway.cli.proxy_config.test_command import BACKENDS, SECRET, folder, run, write

__all__ = ["folder"]

EDGE = {"name": "edge", "proxy": "haproxy", "agent": {"address": "127.0.0.1:9345"}}


def test_haproxy_has_two_files_and_only_one_holds_the_secret(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(write(folder, EDGE))
    code, text, notes = run(capsys, "haproxy", "--config", config, "--spoe-file", "/etc/spoe.conf", *BACKENDS)
    assert (code, SECRET in text, notes) == (0, False, "")
    for part in ("config /etc/spoe.conf", "127.0.0.1:9345", "127.0.0.1:9001", "127.0.0.1:9002", "X-Remote-Extra-scope"):
        assert part in text
    assert "x.(" in text
    assert "|ours..*" in text
    assert "map_str" not in text
    code, engine, notes = run(capsys, "haproxy", "--config", config, "--spoe", *BACKENDS)
    assert (code, f"secret=str({SECRET})" in engine, "holds the secret" in notes) == (0, True, True)
    assert all(f"spoe-message ostiary-{name}" in engine for name in ("shop", "api"))
    assert not any(line.endswith((" ", "\t")) for line in (text + engine).splitlines())


def test_haproxy_with_decisions_looks_requests_up_before_it_asks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write(folder, EDGE | {"decisions": {"socket": "/run/haproxy/ostiary.sock"}})
    _, text, _ = run(capsys, "haproxy", "--config", str(config), "--listen-certificate", "/etc/h.pem", *BACKENDS)
    assert "stats socket /run/haproxy/ostiary.sock level admin" in text
    assert "ssl crt /etc/h.pem alpn h2,http/1.1" in text
    assert text.index("map_str(/dev/null)") < text.index("send-spoe-group") < text.index("status 503")


def test_haproxy_filters_only_what_it_asks_about(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(folder, EDGE | {"decisions": {"socket": "/run/haproxy/ostiary.sock"}})
    _, text, _ = run(capsys, "haproxy", "--config", str(config), *BACKENDS)
    sections = {part.split("\n", 1)[0]: part for part in re.split(r"\n(?=frontend |backend |defaults|global)", text)}
    assert [name for name, part in sections.items() if "filter spoe" in part] == ["backend ostiary-asked"]
    # Whoever has no good pass is asked about; nothing of the request was changed for them before.
    front, asked, passed = (
        sections[name] for name in ("frontend ostiary", "backend ostiary-asked", "backend ostiary-passed")
    )
    assert front.rstrip().endswith("# The gateway is asked. Only its answer makes a pass good.")
    assert front.index("use_backend ostiary-passed if ostiary_leased ostiary_current") < front.index("default_backend")
    assert "default_backend ostiary-asked" in front
    assert "del-header" not in front
    # Both ways delete what a client could claim, and lead to the upstream that was chosen.
    for way in (asked, passed):
        assert way.count("http-request del-header Authorization\n") == way.count("$ -m reg if !ostiary_plain\n") == 1
        assert way.index("del-header ^(") < way.index("add-header X-Remote-User")
        for name in ("shop", "api"):
            assert f"use-server {name} if {{ var(txn.ostiary.to) -m str {name} }}" in way


def test_a_plain_request_of_haproxy_has_one_token_and_no_claim(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = run(capsys, "haproxy", "--config", str(write(folder, EDGE)), *BACKENDS)
    (plain,) = re.findall(r"acl ostiary_plain_names req.hdr_names -m reg (\S+)", text)
    assert re.search(plain, "host,user-agent,accept,authorization,accept-encoding")
    assert re.search(plain, "authorization")
    odd = ("x-remote-user", "x_remote_user", "upgrade", "transfer-encoding", "connection", "unheard-of")
    for name in (*cleared(), *odd):
        for names in (f"host,authorization,{name}", f"{name},authorization,host"):
            assert re.search(plain, names) is None, names
    # None, and two, are looked at more closely.
    assert re.search(plain, "host,accept") is None
    assert re.search(plain, "") is None
    assert re.search(plain, "authorization,host,authorization") is None


def test_a_header_that_the_operator_drops_is_not_plain(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(folder, EDGE, listen={"address": "127.0.0.1:8443", "dropHeaders": ["Origin", "Sec-*"]})
    _, text, _ = run(capsys, "haproxy", "--config", str(config), *BACKENDS)
    (plain,) = re.findall(r"acl ostiary_plain_names req.hdr_names -m reg (\S+)", text)
    assert re.search(plain, "host,authorization,accept")
    assert re.search(plain, "host,authorization,origin") is None
    assert re.search(plain, "host,authorization,sec-fetch-mode") is None


def test_haproxy_verifies_the_gateway_by_its_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ("haproxy", "--config", str(write(folder, EDGE)), *BACKENDS, "--ca", "/etc/ca.pem")
    code, text, _ = run(capsys, *config, "--gateway", "https://gw.example:9345", "--certificate", "/etc/h.pem")
    assert code == 0
    assert "gw.example:9345 ssl verify required ca-file /etc/ca.pem verifyhost gw.example crt /etc/h.pem" in text
    code, text, error = run(capsys, *config, "--gateway", "https://10.0.0.1:9345")
    assert (code, text, "names" in error) == (2, "", True)
