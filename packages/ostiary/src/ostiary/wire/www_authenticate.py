"""Parses ``WWW-Authenticate``: the authentication schemes that a server accepts (RFC 9110, section 11.6.1). Pure.

Lenient, for what registries send: a comma separates both challenges and the parameters of one, and values may lack
their quotes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # noqa: S105
_SEPARATORS = re.compile(r"[ \t,]*+")
_SCHEME = re.compile(rf"({_TOKEN})(?=[ \t,]|$)")
_SPACES = re.compile(r"[ \t]++")
_TOKEN68 = re.compile(r"([A-Za-z0-9._~+/-]++=*+)(?=[ \t]*+(?:,|$))")
_PARAMETER = re.compile(
    rf"""({_TOKEN}) [ \t]*+ = [ \t]*+
    (?: "([^"\\]*+(?:\\.[^"\\]*+)*)" | ([^\s,"]++) )
    (?= [ \t]*+ (?:,|$) )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class ChallengeError(ValueError):
    """The header is not a list of challenges. The message does not quote it."""


@dataclass(frozen=True, slots=True)
class WwwChallenge:
    """One challenge. `scheme` and the names of the `parameters` are in lower case."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    token68: str = ""

    @property
    def realm(self) -> str:
        return self.parameters.get("realm", "")


def parse_challenges(header: str) -> tuple[WwwChallenge, ...]:
    """Return every challenge of *header*, in order; raises `ChallengeError`. Join several headers with commas first."""
    return tuple(_challenges(header))


def find_challenge(header: str, scheme: str) -> WwwChallenge | None:
    """Return the first challenge of *scheme*."""
    return next((challenge for challenge in parse_challenges(header) if challenge.scheme == scheme.lower()), None)


def _challenges(header: str) -> Iterator[WwwChallenge]:
    position = _after(_SEPARATORS, header, 0)
    while position < len(header):
        scheme = _SCHEME.match(header, position)
        if scheme is None:
            raise ChallengeError(f"no challenge begins at character {position + 1}")
        position = _after(_SPACES, header, scheme.end())
        token68 = _TOKEN68.match(header, position) if position > scheme.end() else None
        parameters: dict[str, str] = {}
        if token68 is not None:
            position = _after(_SEPARATORS, header, token68.end())
        elif position > scheme.end():
            position = _read_parameters(header, position, parameters)
        else:
            position = _after(_SEPARATORS, header, position)
        yield WwwChallenge(scheme[1].lower(), parameters, token68[1] if token68 else "")


def _read_parameters(header: str, position: int, parameters: dict[str, str]) -> int:
    position = _after(_SEPARATORS, header, position)
    while (match := _PARAMETER.match(header, position)) is not None:
        name, quoted, bare = match.groups()
        # Names must not repeat. Keep the first one: a later one may have been injected.
        parameters.setdefault(name.lower(), bare if quoted is None else _ESCAPED.sub(r"\1", quoted))
        position = _after(_SEPARATORS, header, match.end())
    return position


def _after(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()
