"""Kinds of settings: how a value is read, checked, described in JSON Schema, and written as a default.

An invalid value is reported at its position and read as None, so that one run reports all errors of a file.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Generic, Self, TypeAlias, TypeVar, cast

from ostiary.core.duration import format_duration
from ostiary.core.yaml import ConfigSection, Json
from ostiary.keys.address import KeyAddress, is_address, parse_address

T = TypeVar("T")


@dataclass(frozen=True)
class SettingKind(Generic[T]):
    """Description of one setting in addition to its type and its default.

    `doc` is one line for the reference and for editors. `name` is the name in the file if it is not the attribute in
    camel case. `unset` describes the behaviour if the setting is absent and its default cannot be shown. `missing` is
    the error for an absent required setting. `reload` False: a change needs a restart.
    """

    doc: str
    _: KW_ONLY
    name: str = ""
    unset: str = ""
    missing: str = "it is missing"
    missing_hint: str | None = None
    reload: bool = True

    @property
    @abstractmethod
    def label(self) -> str:
        """Name of this kind in the reference."""

    @abstractmethod
    def read(self, fields: ConfigSection, key: str, directory: Path) -> T | None:
        """Return the value under *key*. None if it is absent or invalid; an invalid one is reported in *fields*."""

    @abstractmethod
    def schema(self) -> dict[str, Json]:
        """Return the JSON Schema of a value."""

    @abstractmethod
    def blank(self) -> T:
        """Return a placeholder for a missing required value. Never used: with an error reported, nothing is started."""

    def of_setting(self, name: str) -> Self:
        """Return the kind for a setting with this name in the file, if the kind depends on it."""
        return self

    def write(self, value: T) -> Json:
        """Return *value* as written in a file; None if it cannot be shown."""
        return cast("Json", value)

    def must_be_written(self, *, is_required: bool) -> bool:
        """Report whether the file is invalid without it."""
        return is_required


# --- text ---


@dataclass(frozen=True)
class Text(SettingKind[str]):
    """Non-empty text that matches `pattern`.

    `empty` is the error for an empty text. If `empty` is "", an empty text counts as absent.
    """

    pattern: str = ""
    mistake: str = ""
    hint: str | None = None
    empty: str = "it must not be empty"
    empty_hint: str | None = None

    @property
    def label(self) -> str:
        return "text"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        text = fields.optional_string(key)
        if text == "" and self.empty:
            fields.problem(self.empty, key, self.empty_hint)
        if text and self.pattern and not re.fullmatch(self.pattern, text):
            fields.problem(self.mistake, key, self.hint)
            return None
        return text or None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", **({"pattern": f"^({self.pattern})$"} if self.pattern else {"minLength": 1})}

    def blank(self) -> str:
        return ""


def header_name(doc: str) -> Text:
    """Return the kind for an HTTP header name.

    Underscores are invalid: some servers treat them as dashes, which would make two headers one.
    """
    return Text(doc, pattern="[A-Za-z0-9-]+", mistake="it is not a header name of letters, digits and dashes")


@dataclass(frozen=True)
class AnyText(Text):
    """Text that may be empty."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        return fields.optional_string(key)

    def schema(self) -> dict[str, Json]:
        return {"type": "string"}


@dataclass(frozen=True)
class Constant(SettingKind[str]):
    """Text with one valid value; also invalid if absent."""

    value: str

    @property
    def label(self) -> str:
        return f"`{self.value}`"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        if fields.string(key) != self.value and fields.is_right(key):
            fields.problem(f"it must be {self.value}", key)
        return self.value

    def schema(self) -> dict[str, Json]:
        return {"const": self.value}

    def blank(self) -> str:
        return self.value


@dataclass(frozen=True)
class Parsed(SettingKind[T]):
    """Text converted by `parse`, which raises `ValueError` with the error message."""

    parse: Callable[[str], T]
    pattern: str = ""
    hint: str | None = None
    kind: str = "text"

    @property
    def label(self) -> str:
        return self.kind

    def read(self, fields: ConfigSection, key: str, directory: Path) -> T | None:
        text = fields.optional_string(key)
        if text == "":
            fields.problem("it must not be empty", key)
        if not text:
            return None
        try:
            return self.parse(text)
        except ValueError as mistake:
            fields.problem(str(mistake), key, self.hint)
            return None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", **({"pattern": self.pattern} if self.pattern else {"minLength": 1})}

    def blank(self) -> T:
        raise AssertionError("a parsed setting has a default")

    def write(self, value: T) -> Json:
        return str(value)


# --- numbers and durations ---

_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"  # the micro sign and the Greek letter
DURATION_PATTERN = rf"^({_NUMBER})+$|^0$"


@dataclass(frozen=True)
class Integer(SettingKind[int]):
    """An integer with a minimum."""

    least: int = 1
    unit: str = ""
    mistake: str = "it must be at least {}"

    @property
    def label(self) -> str:
        return self.unit or "integer"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> int | None:
        number = fields.optional_integer(key)
        if number is not None and number < self.least:
            fields.problem(self.mistake.format(self.least), key)
            return None
        return number

    def schema(self) -> dict[str, Json]:
        return {"type": "integer", "minimum": self.least}

    def blank(self) -> int:
        return self.least


@dataclass(frozen=True)
class Rate(SettingKind[float]):
    """Non-negative number. `zero`: zero is valid, and usually means no limit."""

    zero: bool = False

    @property
    def label(self) -> str:
        return "number"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> float | None:
        number = fields.optional_number(key)
        if number is not None and (number < 0 or (number == 0 and not self.zero)):
            fields.problem(_sign_mistake(zero=self.zero), key)
            return None
        return number

    def schema(self) -> dict[str, Json]:
        return {"type": "number", "minimum" if self.zero else "exclusiveMinimum": 0}

    def blank(self) -> float:
        return 1.0

    def write(self, value: float) -> Json:
        return int(value) if value == int(value) else value


@dataclass(frozen=True)
class Ratio(SettingKind[float]):
    """Ratio: a number from 0 to 1."""

    @property
    def label(self) -> str:
        return "number from 0 to 1"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> float | None:
        number = fields.optional_number(key)
        if number is not None and not 0 <= number <= 1:
            fields.problem("it must be a number from 0 to 1", key, "0.1 is one in ten")
            return None
        return number

    def schema(self) -> dict[str, Json]:
        return {"type": "number", "minimum": 0, "maximum": 1}

    def blank(self) -> float:
        return 1.0

    def write(self, value: float) -> Json:
        return int(value) if value == int(value) else value


@dataclass(frozen=True)
class Duration(SettingKind[timedelta]):
    """Duration with a unit. `zero`: ``0s`` is valid. `mistake` is the error for one below the minimum."""

    zero: bool = False
    least: timedelta = timedelta(0)
    mistake: str = ""

    @property
    def label(self) -> str:
        return "duration"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> timedelta | None:
        bare = fields.plain(key)
        if isinstance(bare, (int, float)) and not isinstance(bare, bool):
            fields.problem("it has no unit", key, f"write {bare}s, {bare}m or {bare}h")
            return None
        span = fields.optional_duration(key)
        if span is not None and (span < self.least or (span == timedelta(0) and not self.zero)):
            fields.problem(self.mistake or _sign_mistake(zero=self.zero), key)
            return None
        return span

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "pattern": DURATION_PATTERN}

    def blank(self) -> timedelta:
        return timedelta(seconds=1)

    def write(self, value: timedelta) -> Json:
        return short_duration(value)


@dataclass(frozen=True)
class Seconds(SettingKind[float]):
    """Like `Duration`, but in seconds as a float."""

    zero: bool = False
    mistake: str = ""

    @property
    def label(self) -> str:
        return "duration"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> float | None:
        span = Duration(self.doc, zero=self.zero, mistake=self.mistake).read(fields, key, directory)
        return None if span is None else span.total_seconds()

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "pattern": DURATION_PATTERN}

    def blank(self) -> float:
        return 1.0

    def write(self, value: float) -> Json:
        return short_duration(timedelta(seconds=value))


def short_duration(duration: timedelta) -> str:
    """Format a duration as users write it: 1h, not 1h0m0s."""
    return re.sub(r"(?<=h)0m0s$|(?<=m)0s$", "", format_duration(duration))


def _sign_mistake(*, zero: bool) -> str:
    return "it must not be negative" if zero else "it must be greater than zero"


# --- enumerations ---

E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class Flag(SettingKind[bool]):
    @property
    def label(self) -> str:
        return "boolean"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> bool | None:
        return fields.optional_boolean(key)

    def schema(self) -> dict[str, Json]:
        return {"type": "boolean"}

    def blank(self) -> bool:
        return False


@dataclass(frozen=True)
class OneOf(SettingKind[E]):
    """A value of an enumeration. `lenient`: an empty text counts as absent."""

    among: type[E]
    mistake: str = "unknown value"
    hint: str = "use one of {}"
    lenient: bool = False

    @property
    def label(self) -> str:
        return ", ".join(f"`{option}`" for option in self._options())

    def _options(self) -> dict[str, E]:
        return {str(option.value): option for option in self.among if option.value != ""}

    def read(self, fields: ConfigSection, key: str, directory: Path) -> E | None:
        text, options = fields.optional_string(key), self._options()
        if text is not None and text not in options and not (text == "" and self.lenient):
            listed = ", ".join(options)
            fields.problem(self.mistake.format(listed), key, self.hint.format(listed) or None)
        return options.get(text or "")

    def schema(self) -> dict[str, Json]:
        return {"enum": list(self._options())}

    def blank(self) -> E:
        return next(iter(self.among))

    def write(self, value: E) -> Json:
        return str(value.value)


@dataclass(frozen=True)
class Word(SettingKind[str]):
    """One of several texts. `empty` is the error for an empty one; if it is "", an empty text counts as absent."""

    among: tuple[str, ...]
    mistake: str = "unknown value"
    hint: str = "use one of {}"
    empty: str = "it must not be empty"

    @property
    def label(self) -> str:
        return ", ".join(f"`{option}`" for option in self.among)

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        text = Text(self.doc, empty=self.empty).read(fields, key, directory)
        if text is not None and text not in self.among:
            listed = ", ".join(self.among)
            fields.problem(self.mistake.format(listed), key, self.hint.format(listed) or None)
            return None
        return text

    def schema(self) -> dict[str, Json]:
        return {"enum": list(self.among)}

    def blank(self) -> str:
        return self.among[0]


# --- lists of texts ---


@dataclass(frozen=True)
class Texts(SettingKind[tuple[str, ...]]):
    """List of texts that match `pattern`. With `least` 1, an empty list counts as absent.

    `empty` is the error for an empty text in the list, `repeated` for a duplicate, and `empty_list` for a list without
    texts; "" means that it is valid. `unique` declares duplicates invalid in the JSON Schema only.
    """

    pattern: str = ""
    mistake: str = ""
    hint: str | None = None
    least: int = 0
    empty: str = ""
    empty_hint: str | None = None
    repeated: str = ""
    unique: bool = False
    empty_list: str = ""
    empty_list_hint: str | None = None

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[str, ...] | None:
        texts = fields.strings(key)
        if "" in texts and self.empty:
            fields.problem(self.empty, key, self.empty_hint)
        if len(set(texts)) < len(texts) and self.repeated:
            fields.problem(self.repeated, key)
        for text in texts:
            if text and self.pattern and not re.fullmatch(self.pattern, text):
                fields.problem(self.mistake, key, self.hint)
        if not texts and self.empty_list and key in fields and fields.is_right(key):
            fields.problem(self.empty_list, key, self.empty_list_hint)
        return texts if texts or (key in fields and not self.least and not self.empty_list) else None

    def schema(self) -> dict[str, Json]:
        item: dict[str, Json] = {"pattern": f"^({self.pattern})$"} if self.pattern else {"minLength": 1}
        schema: dict[str, Json] = {"type": "array", "items": {"type": "string", **item}}
        if self.least or self.empty_list:
            schema["minItems"] = 1
        if self.unique or self.repeated:
            schema["uniqueItems"] = True
        return schema

    def blank(self) -> tuple[str, ...]:
        return ()

    def write(self, value: Iterable[str]) -> Json:
        return list(value)


@dataclass(frozen=True)
class Names(Texts):
    """List without empty texts and duplicates: an empty text in a filter could match anything."""

    empty: str = "empty entry in the list"
    empty_hint: str | None = "remove it, or fill it in"
    repeated: str = "duplicate entry in the list"


@dataclass(frozen=True)
class NameSet(SettingKind[frozenset[str]]):
    """Like `Names`, but unordered. `always` is added to every value."""

    always: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> frozenset[str] | None:
        return frozenset(Names(self.doc).read(fields, key, directory) or ()) | self.always

    def schema(self) -> dict[str, Json]:
        return Names(self.doc).schema()

    def blank(self) -> frozenset[str]:
        return self.always

    def write(self, value: frozenset[str]) -> Json:
        return list[Json](sorted(value))


# --- files ---


class Holds(Enum):
    """Content of the file that a setting names, so that ``--check`` knows how to check it."""

    ANYTHING = "anything"
    CERTIFICATES = "certificates"
    SECRET = "secret"  # noqa: S105  # no password
    POLICY = "policy"  # identities and permissions
    WRITTEN = "written"  # by the gateway; it may not exist yet


@dataclass(frozen=True)
class FilePath(SettingKind[Path]):
    """File or directory; a relative path is relative to the directory of the configuration.

    `checked`: it must be readable now. A WRITTEN file may not exist yet, but its directory must. `empty` is the error
    for an empty text; if it is "", an empty text counts as absent.
    """

    holds: Holds = Holds.ANYTHING
    checked: bool = True
    empty: str = "it must not be empty"

    @property
    def label(self) -> str:
        return "file"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> Path | None:
        text = Text(self.doc, empty=self.empty).read(fields, key, directory)
        if text is None:
            return None
        path = directory / Path(text).expanduser()
        if self.checked and (mistake := self._mistake(path)):
            fields.problem(mistake, key)
        return path

    def _mistake(self, path: Path) -> str | None:
        if self.holds is Holds.WRITTEN:
            return None if path.parent.is_dir() else "the directory of the file does not exist"
        reason = unreadable(path)
        return f"the file cannot be read: {reason}" if reason else None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "minLength": 1}

    def blank(self) -> Path:
        return Path()

    def write(self, value: Path) -> Json:
        return str(value)


@dataclass(frozen=True)
class FilePaths(SettingKind[tuple[Path, ...]]):
    """List of files or directories."""

    holds: Holds = Holds.ANYTHING

    @property
    def label(self) -> str:
        return "list of files"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[Path, ...] | None:
        paths = tuple(directory / Path(text).expanduser() for text in fields.strings(key))
        return paths or None

    def schema(self) -> dict[str, Json]:
        return Names(self.doc, least=1).schema()

    def blank(self) -> tuple[Path, ...]:
        return ()

    def write(self, value: tuple[Path, ...]) -> Json:
        return [str(path) for path in value]


def unreadable(path: Path) -> str | None:
    """Return why a file cannot be read; None if it can."""
    try:
        if path.is_dir():
            return "it is a directory"
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
    return None


# --- private keys ---

KeyPlace: TypeAlias = Path | KeyAddress


@dataclass(frozen=True)
class PrivateKey(SettingKind[KeyPlace]):
    """File with a private key, or the address of an external key: ``pkcs11:...``, ``tpm2:...``."""

    @property
    def label(self) -> str:
        return "file, or address of a key"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> KeyPlace | None:
        text = Text(self.doc).read(fields, key, directory)
        if text is None or not is_address(text):
            return FilePath(self.doc, holds=Holds.SECRET).read(fields, key, directory)
        try:
            return parse_address(text, directory)
        except ValueError as error:
            fields.problem(f"the address of the key cannot be used: {error}", key)
            return None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "minLength": 1}

    def blank(self) -> KeyPlace:
        return Path()

    def write(self, value: KeyPlace) -> Json:
        return str(value)


@dataclass(frozen=True)
class PrivateKeys(SettingKind[tuple[KeyPlace, ...]]):
    """List of private keys, each like `PrivateKey`."""

    @property
    def label(self) -> str:
        return "list of files, or of addresses of keys"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[KeyPlace, ...] | None:
        places: list[KeyPlace] = []
        for text in fields.strings(key):
            try:
                file = directory / Path(text).expanduser()
                places.append(parse_address(text, directory) if is_address(text) else file)
            except ValueError as error:
                fields.problem(f"the address of a key cannot be used: {error}", key)
        return tuple(places) or None

    def schema(self) -> dict[str, Json]:
        return Names(self.doc, least=1).schema()

    def blank(self) -> tuple[KeyPlace, ...]:
        return ()

    def write(self, value: tuple[KeyPlace, ...]) -> Json:
        return [str(place) for place in value]
