"""The nouns of ostiary: values without behaviour, frozen, and without any input or output.

Everything else in the package speaks in these. JSON spellings stay in `ostiary.wire`.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn


class Secret:
    """Text that must not be shown.

    It prints as ``Secret(***)``, compares in constant time and refuses to be pickled; only `reveal()`
    gives the text, so every use of it can be found by searching for that name.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = (text.encode("utf-8", "surrogatepass") for text in (self._text, other._text))
        return hmac.compare_digest(mine, theirs)

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret cannot be pickled: it would leave this process in plain text")

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate chain and its private key, both PEM. The key lives in memory only."""

    chain_pem: str
    key_pem: Secret
    not_before: datetime | None = None
    not_after: datetime | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Credential:
    """What a client presents: a token, a client certificate, or both, and when they expire.

    Compared by identity: a plugin may answer twice with the same token, and the second answer is
    still newer than the first. `basic` is the username and password of old kubeconfigs.
    """

    token: Secret | None = None
    certificate: ClientCertificate | None = None
    expires_at: datetime | None = None
    basic: tuple[str, Secret] | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stood: the file it came from, the path inside it, and the line."""

    file: str | None = None
    path: str = ""
    line: int | None = None

    def __str__(self) -> str:
        file = self.file or "<memory>"
        if self.line is not None:
            file = f"{file}:{self.line}"
        return f"{file}, {self.path}" if self.path else file


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a configuration, and where it stands."""

    message: str
    place: Place = field(default_factory=Place)
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"
