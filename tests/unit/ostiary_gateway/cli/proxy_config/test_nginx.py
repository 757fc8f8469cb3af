"""What ``ostiary-gateway door nginx --cache`` prints: what the key of an answer holds, and which headers pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ostiary_gateway.cli.proxy_config.nginx import PASSED_WITH_CACHE
from tests.unit.ostiary_gateway.cli.proxy_config.test_command import BACKENDS, folder, run, write

__all__ = ["folder"]

CACHED = ("--cache", "5s", "--token-hash", "set-misc")


def test_only_the_last_part_of_the_key_can_hold_what_separates_its_parts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, _ = run(capsys, "nginx", "--config", str(write(folder)), *CACHED, *BACKENDS)
    keys = set(re.findall(r"proxy_cache_key (\S+);", text))
    assert {key.partition(":")[0] for key in keys} == {"api", "shop"}, "each upstream has its own"
    for key in keys:
        upstream, *parts, last = key.split(":")
        assert f"location = /_ostiary/{upstream} " in text
        assert last == "$http_host/$request_uri", "no host has a slash"
        assert set(parts) == {
            *("$request_method", "$server_protocol", "$http_transfer_encoding", "$content_length"),
            *("$ostiary_upgrade", "$ostiary_token"),
        }


def passed(text: str) -> list[str]:
    return re.findall(r"proxy_set_header (\S+) \$http_(?!host)", text)


def test_the_operator_chooses_which_headers_pass_with_a_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ("nginx", "--config", str(write(folder)), *CACHED, *BACKENDS)
    _, text, _ = run(capsys, *config)
    assert passed(text) == [*PASSED_WITH_CACHE] * text.count("auth_request /")
    code, text, _ = run(capsys, *config, "--pass-header", "Accept", "--pass-header", "X-Shop-Basket")
    assert (code, passed(text)) == (0, ["Accept", "X-Shop-Basket"] * text.count("auth_request /"))
    assert "proxy_set_header X-Shop-Basket $http_x_shop_basket;" in text
    assert "proxy_pass_request_headers off;" in text


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "X-Remote-User", "x-remote-anything", "Impersonate-Extra-x", "X-Forwarded-For", "X-Real-IP"),
        *("X-Mine", "X-Ours-too", "Connection", "Upgrade", "Host", "Content-Length", "Transfer-Encoding"),
        *("", "a b", "a;", "X_Y", "$host", "x\ny"),
    ],
)
def test_no_claim_can_be_made_to_pass(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    config = ("nginx", "--config", str(write(folder)), *CACHED, *BACKENDS)
    code, text, error = run(capsys, *config, "--pass-header", name)
    assert (code, text) == (2, "")
    assert "--pass-header" in error


def test_without_a_cache_there_is_nothing_to_choose(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, error = run(capsys, "nginx", "--config", str(write(folder)), *BACKENDS, "--pass-header", "Accept")
    assert (code, "--cache" in error) == (2, True)
