"""The scripts: each says which parts it uses, and touches only keys of one slot."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary_gateway.stores.redis import script_calls as scripts
from ostiary_gateway.stores.redis.script_calls import script
from tests.support.redis import RedisServer

FOLDER = Path(scripts.__file__).parent / "lua"
NAMES = sorted(file.stem for file in FOLDER.glob("*.lua"))


def test_every_script_is_used() -> None:
    code = "".join(file.read_text() for file in FOLDER.parent.glob("*.py"))
    assert [name for name in NAMES if f'"{name}"' not in code] == []


def test_the_server_takes_it_and_names_it_as_we_do(subtests: pytest.Subtests, server: RedisServer) -> None:
    for name in NAMES:
        with subtests.test(name=name):
            digest = server.ask("SCRIPT", "LOAD", script(name).source)
            assert digest == script(name).digest.encode()


def test_every_key_begins_with_the_prefix(subtests: pytest.Subtests) -> None:
    """A literal key would lie in another slot of a cluster."""
    for name in NAMES:
        with subtests.test(name=name):
            for line in script(name).source.splitlines():
                if "redis.call(" in line:
                    command, _, rest = line.partition("redis.call(")[2].partition(", ")
                    literal = rest.startswith("'") and command not in ("'TIME'",)
                    assert not literal, line
