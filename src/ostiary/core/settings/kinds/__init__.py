"""The kinds of settings: how a value is read and checked, what JSON Schema says of it, how its default is written.

Used by the dataclasses that declare settings (`core.settings.declare`). A mistaken value is noted where it stands and
gives None, so that reading goes on and all mistakes of a file are reported at once.
"""

from ostiary.core.settings.kinds.choice import Flag, OneOf, Word
from ostiary.core.settings.kinds.file import FilePath, FilePaths, Holds, unreadable
from ostiary.core.settings.kinds.key import KeyPlace, PrivateKey, PrivateKeys
from ostiary.core.settings.kinds.kind import SettingKind
from ostiary.core.settings.kinds.listed import Names, NameSet, Texts
from ostiary.core.settings.kinds.number import Duration, Integer, Rate, Ratio, Seconds, short_duration
from ostiary.core.settings.kinds.text import AnyText, Constant, Parsed, Text, header_name

__all__ = [
    "AnyText",
    "Constant",
    "Duration",
    "FilePath",
    "FilePaths",
    "Flag",
    "Holds",
    "Integer",
    "KeyPlace",
    "NameSet",
    "Names",
    "OneOf",
    "Parsed",
    "PrivateKey",
    "PrivateKeys",
    "Rate",
    "Ratio",
    "Seconds",
    "SettingKind",
    "Text",
    "Texts",
    "Word",
    "header_name",
    "short_duration",
    "unreadable",
]
