"""The kinds of settings: how a value is read and checked, what JSON Schema says of it, how its default is written.

Used by the dataclasses that declare settings (`core.settings.declare`). A mistaken value is noted where it stands and
gives None, so that reading goes on and all mistakes of a file are reported at once.
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

# What every kind of setting is: how a value is read and checked, described in JSON Schema, and written.

T = TypeVar("T")


@dataclass(frozen=True)
class SettingKind(Generic[T]):
    """What a declaration says of one setting besides its type and its default.

    `doc` is one line for the reference and for editors. `name` is its name in the file, where that is not the
    attribute's in camel case. `unset` says what holds if it is left out, where no default can be shown. `missing` is
    the error for a required setting that is absent. `reload` False: a change needs a restart.
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
        """What the reference calls a value of this kind."""

    @abstractmethod
    def read(self, fields: ConfigSection, key: str, directory: Path) -> T | None:
        """The value under *key*; None if there is none, or a mistaken one, which is then noted in *fields*."""

    @abstractmethod
    def schema(self) -> dict[str, Json]:
        """What JSON Schema can say of a value."""

    @abstractmethod
    def blank(self) -> T:
        """In place of a required value that is missing. Never used: with a problem noted, nothing is started."""

    def of_setting(self, name: str) -> Self:
        """The kind for a setting that has this name in the file, for a kind that depends on it."""
        return self

    def write(self, value: T) -> Json:
        """*value* as it stands in a file; None if it cannot be shown."""
        return cast("Json", value)

    def must_be_written(self, *, is_required: bool) -> bool:
        """Whether the file is wrong without it."""
        return is_required


# Settings that are one text.


@dataclass(frozen=True)
class Text(SettingKind[str]):
    """A text that is not empty, of the given `pattern`.

    `empty` is the error for an empty one; with "" it counts as left out.
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
    """The name of an HTTP header. No underscore: some servers take it for a dash, and then two headers are one."""
    return Text(doc, pattern="[A-Za-z0-9-]+", mistake="it is not a header name of letters, digits and dashes")


@dataclass(frozen=True)
class AnyText(Text):
    """A text that may be empty."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        return fields.optional_string(key)

    def schema(self) -> dict[str, Json]:
        return {"type": "string"}


@dataclass(frozen=True)
class Constant(SettingKind[str]):
    """A text that is always the same; left out, it is wrong as well."""

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
    """A text that `parse` makes a value of; it raises `ValueError` with what is wrong."""

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


# Settings that are a number or a time span.

_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"  # the micro sign and the Greek letter
DURATION_PATTERN = rf"^({_NUMBER})+$|^0$"


@dataclass(frozen=True)
class Integer(SettingKind[int]):
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
    """A number that is not negative; `zero` tells whether zero is allowed, and mostly means no limit."""

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
    """A part of a whole: a number from 0 to 1."""

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
    """A time span with its unit; `zero` tells whether ``0s`` is allowed. `mistake` is the error for a shorter one."""

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
    """A time span with its unit, for code that computes with seconds."""

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
    """As people write it: 1h, and not 1h0m0s."""
    return re.sub(r"(?<=h)0m0s$|(?<=m)0s$", "", format_duration(duration))


def _sign_mistake(*, zero: bool) -> str:
    return "it must not be negative" if zero else "it must be greater than zero"


# Settings that are one of a few values.

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
    """One of the values of an enumeration. With `lenient` an empty text counts as left out."""

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
    """One of a few texts. `empty` is the error for an empty one; with "" it counts as left out."""

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


# Settings that are a list of texts.


@dataclass(frozen=True)
class Texts(SettingKind[tuple[str, ...]]):
    """A list of texts of the given `pattern`. With `least` 1, an empty list counts as left out.

    `empty` is the error for an empty text among them, `repeated` that for one that stands there twice, `empty_list`
    that for a list without texts; with "" they are let pass. An editor marks repeated ones anyway if `unique` is set.
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
    """A list without empty and repeated texts: a filter with an empty one would let through who knows what."""

    empty: str = "empty entry in the list"
    empty_hint: str | None = "remove it, or fill it in"
    repeated: str = "duplicate entry in the list"


@dataclass(frozen=True)
class NameSet(SettingKind[frozenset[str]]):
    """The same, where the order means nothing; `always` are in it, whatever is written."""

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


# Settings that name files.


class Holds(Enum):
    """What is in a file that a setting names, so that ``--check`` knows what to look at."""

    ANYTHING = "anything"
    CERTIFICATES = "certificates"
    SECRET = "secret"  # noqa: S105  # no password
    POLICY = "policy"  # who somebody is, and what they may do
    WRITTEN = "written"  # by us; it may not exist yet


@dataclass(frozen=True)
class FilePath(SettingKind[Path]):
    """A file, or a directory; a relative path is meant from the directory of the configuration.

    With `checked` it must be possible to read it at this moment; one that is WRITTEN may not exist yet, but its
    directory must. `empty` is the error for an empty text; with "" it counts as left out.
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
    """A list of files or directories."""

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
    """Why a file cannot be read; None if it can."""
    try:
        if path.is_dir():
            return "it is a directory"
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
    return None


# Settings that name a private key: its file, or the address of one that is kept elsewhere.

KeyPlace: TypeAlias = Path | KeyAddress


@dataclass(frozen=True)
class PrivateKey(SettingKind[KeyPlace]):
    """A file with a key, or the address of one that is kept elsewhere: ``pkcs11:...``, ``tpm2:...``."""

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
    """A list of them."""

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
