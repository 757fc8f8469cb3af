"""The settings of the Redis store: what is refused before anything is asked, and what stands on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError
from ostiary_gateway.catalog import Context
from ostiary_gateway.stores.redis.settings import split_address
from ostiary_gateway.stores.redis.token_store import RedisTokenStore

PAGE = Path(__file__).parents[5] / "docs" / "how-to" / "keep-tokens-in-redis.md"
LOCAL = "127.0.0.1:6379"


def load(directory: Path, settings: dict[str, Any]) -> RedisTokenStore:
    reading = ConfigReader(parse(yaml.safe_dump(settings)))
    store = RedisTokenStore.from_config(reading.root, Context("store", directory))
    reading.finish("gateway.yaml")
    return store


def test_a_server_on_this_machine_needs_no_tls(tmp_path: Path) -> None:
    assert repr(load(tmp_path, {"address": LOCAL})) == f"RedisTokenStore({LOCAL})"


def test_what_cannot_be_meant_is_refused(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "one of address, sentinel and cluster says where Redis is"),
        ({"address": LOCAL, "cluster": {"addresses": [LOCAL]}}, "one of address, sentinel and cluster"),
        ({"address": "redis.example.com"}, "would be sent in plain text"),
        ({"sentinel": {"name": "x", "addresses": ["s.example.com:26379"]}}, "would be sent in plain text"),
        ({"cluster": {"addresses": [LOCAL, "10.0.0.1:6379"]}}, "would be sent in plain text"),
        ({"address": "redis://:secret@127.0.0.1"}, "it must be like redis.example.com:6379"),
        ({"sentinel": {"name": "x", "addresses": []}}, "the list is empty"),
        ({"sentinel": {"addresses": [LOCAL]}}, "it is missing"),
        ({"cluster": {"addresses": [LOCAL]}, "database": 1}, "a cluster has only database 0"),
        ({"address": LOCAL, "prefix": "a{b}"}, "no spaces and no braces"),
        ({"address": LOCAL, "waitReplicas": 1, "waitTimeout": "2s"}, "it must be shorter than timeout"),
        ({"address": LOCAL, "tls": {"ca": "missing.pem"}}, "the file cannot be read"),
        ({"address": LOCAL, "tls": {"key": "key.pem"}}, "a certificate and its key go together"),
    ]
    for settings, expected in cases:
        with subtests.test(settings=settings, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "key.pem").write_text("")
            with pytest.raises(ConfigurationError) as caught:
                load(tmp_path, settings)
            assert expected in str(caught.value)
            assert "secret" not in str(caught.value)


def test_plain_text_beyond_this_machine_is_a_choice(tmp_path: Path) -> None:
    load(tmp_path, {"address": "redis.example.com", "insecure": True})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("redis.example.com", ("redis.example.com", 1)),
        ("redis.example.com:6380", ("redis.example.com", 6380)),
        ("10.0.0.1:6380", ("10.0.0.1", 6380)),
        ("[::1]:6380", ("::1", 6380)),
        ("[fe80::1]", ("fe80::1", 1)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text, 1) == expected


def test_the_examples_of_the_page_are_right(tmp_path: Path) -> None:
    for name in ("redis-ca.pem", "redis-password"):
        (tmp_path / name).write_text("")
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 3
    for example in examples:
        store = yaml.safe_load(example)["store"]
        assert store.pop("type") == "redis"
        load(tmp_path, store)
