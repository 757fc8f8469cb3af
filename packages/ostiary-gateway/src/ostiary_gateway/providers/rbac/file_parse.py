"""Parse the bytes of one manifest file: plain YAML with a fast parser, everything else with the full one."""

from __future__ import annotations

from ostiary.core.yaml import MAX_BYTES, parse_all
from ostiary.core.yaml.fast_yaml import read_plain_blocks
from ostiary.errors import ConfigurationError
from ostiary_gateway.wire.rbac import Manifests, read_manifests

# Irregular YAML larger than this is better parsed in child processes.
MOST_HERE = 64 * 1024


def parse_quickly(data: bytes, file: str) -> Manifests | None:
    """Parse a file of plain YAML. Return None if much of it is not plain, or if it has an error."""
    return _parse_plain(data, file, MOST_HERE)


def parse_file(data: bytes, file: str) -> Manifests:
    """Parse any file. The result includes every error."""
    manifests = _parse_plain(data, file, None)
    return parse_fully(data, file) if manifests is None else manifests


def _parse_plain(data: bytes, file: str, most_irregular: int | None) -> Manifests | None:
    if len(data) > MAX_BYTES:
        return None
    documents = read_plain_blocks(data, file=file, most_irregular=most_irregular)
    return None if documents is None else read_manifests(documents)


def parse_fully(data: bytes, file: str) -> Manifests:
    """Like `parse_file`, but only with the full YAML parser."""
    parts: list[Manifests] = []
    try:
        for document in parse_all(data, file=file):
            parts.append(read_manifests([document]))
    except ConfigurationError as error:
        parts.append(Manifests(problems=error.problems))
    return Manifests(
        tuple(role for part in parts for role in part.roles),
        tuple(binding for part in parts for binding in part.bindings),
        sum(part.ignored for part in parts),
        tuple(problem for part in parts for problem in part.problems),
    )
