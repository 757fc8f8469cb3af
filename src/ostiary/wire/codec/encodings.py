"""An object of Kubernetes as the bytes that a client asked for: JSON, YAML or protobuf, as kube-apiserver writes them.

Called by the self reviews. Pure.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import yaml

from ostiary.wire.codec import protobuf
from ostiary.wire.codec.go_json import go_json, indented_go_json
from ostiary.wire.codec.negotiation import PROTOBUF, YAML, Representation


def encode(value: dict[str, Any], wanted: Representation) -> tuple[str, bytes]:
    """The content type and the bytes. JSON where there is no protobuf type for it, as a Status on the way out."""
    if wanted.media_type == YAML:
        return YAML, as_yaml(value)
    if wanted.media_type == PROTOBUF:
        return PROTOBUF, protobuf.encode(value)
    return "application/json", as_json(value, pretty=wanted.pretty)


def as_json(value: Any, *, pretty: bool = False) -> bytes:
    text = indented_go_json(value) if pretty else go_json(value) + "\n"
    return text.encode("utf-8", "replace")


class _GoYamlDumper(yaml.SafeDumper):
    """Lists are not indented, keys are sorted, and what needs quotes gets double ones, as Go's YAML has it."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _string(dumper: _GoYamlDumper, text: str) -> yaml.ScalarNode:
    style = None if _is_plain(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


# Asking the dumper takes long, and a list of rules has the same few words a thousand times.
@lru_cache(maxsize=1024)
def _is_plain(text: str) -> bool:
    """Whether *text* can stand without quotes. Letters and digits in groups need not be asked about, if a letter is
    first and YAML has no other meaning for the word."""
    if _WORDS.fullmatch(text) and text.lower() not in _NOT_WORDS:
        return True
    return yaml.safe_dump(text, default_flow_style=True, width=float("inf"), allow_unicode=True).startswith(text)


_WORDS = re.compile(r"[a-zA-Z][a-zA-Z0-9]*(?:[-./][a-zA-Z0-9]+)*")
_NOT_WORDS = frozenset(("y", "n", "yes", "no", "true", "false", "on", "off", "null"))


_GoYamlDumper.add_representer(str, _string)


def as_yaml(value: Any) -> bytes:
    # Tuples and the like are lists to JSON.
    plain = json.loads(json.dumps(value))
    text = yaml.dump(plain, Dumper=_GoYamlDumper, default_flow_style=False, width=float("inf"), allow_unicode=True)
    return text.encode("utf-8", "replace")
