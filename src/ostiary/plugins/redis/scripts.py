"""The Lua scripts of the store. Each is one change or one look, which nothing else comes between.

A script is its file in ``lua/``, after the parts that its first line names. The server knows it by its digest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files

_USES = "-- uses:"


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    digest: str


@cache
def script(name: str) -> Script:
    body = _read(name)
    first, _, _ = body.partition("\n")
    assert first.startswith(_USES), f"{name}.lua does not say which parts it uses"
    parts = [_read(f"parts/{part}") for part in first.removeprefix(_USES).split()]
    source = "\n".join([*parts, body])
    # Redis names scripts by this digest; nothing rests on it.
    return Script(name, source, sha1(source.encode(), usedforsecurity=False).hexdigest())


def _read(name: str) -> str:
    return files("ostiary.plugins.redis").joinpath(f"lua/{name}.lua").read_text(encoding="utf-8")
