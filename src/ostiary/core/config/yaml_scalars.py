"""What a scalar of YAML means to Kubernetes: the rules of go-yaml v2, which sigs.k8s.io/yaml uses.

It knows fewer forms than YAML 1.1 and others than PyYAML: a lone ``y`` is a boolean, a date and ``12:30`` are text.
"""

from __future__ import annotations

import math
import re
import struct

from ostiary.core.config.document import Scalar
from ostiary.core.go.text import decode_base64, decode_like_go

WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], math.nan),
    **dict.fromkeys([".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], math.inf),
    **dict.fromkeys(["-.inf", "-.Inf", "-.INF"], -math.inf),
}
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|(0|[1-9][0-9]*))")
_BASES = (16, 8, 2, 10)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_DOT_FIRST = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
# Enough for 64 bits in any base. Longer ones are not integers, and Python may refuse to read them.
_MOST_DIGITS = 80
_TIMESTAMP = re.compile(
    r"[0-9]{4}-(0?[1-9]|1[0-2])-(0?[1-9]|[12][0-9]|3[01])"
    r"([Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.,][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})?)?"
)
_PREFIX = "tag:yaml.org,2002:"


class ScalarError(ValueError):
    """A scalar does not fit its tag."""


def resolve(text: str, tag: str | None, *, implicit: bool) -> Scalar:
    """The value of a scalar, which may be infinite or not a number; raises `ScalarError`."""
    name = (tag or "").removeprefix(_PREFIX)
    if name == "binary":
        return _binary(text)
    if name in _TAGGED:
        return _resolve_tagged(name, text)
    return _resolve(text) if not tag and implicit else text


def key_of(value: Scalar) -> str | None:
    """The key that a scalar becomes in JSON, which spells every key as a string; None if it cannot be one."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value < 2**63 else None
    return _go_float(value) if isinstance(value, float) else None


def _resolve(text: str) -> Scalar:
    if text in WORDS:
        return WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    # After a leading dot, underscores must stand between digits, as in Go itself.
    digits = text if text[0] == "." and not _DOT_FIRST.fullmatch(text) else text.replace("_", "")
    number = _integer(digits)
    if number is not None:
        return number
    if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        return float(digits)
    return text


def _integer(digits: str) -> int | None:
    match = _INTEGER.fullmatch(digits)
    if match is None or len(digits) > _MOST_DIGITS:
        return None
    sign, *numerals = match.groups()
    size = next(int(numeral, base) for numeral, base in zip(numerals, _BASES, strict=True) if numeral)
    # Go tries int64 and then, without a sign, uint64.
    largest = {"": 2**64 - 1, "+": 2**63 - 1, "-": 2**63}[sign]
    if size > largest:
        return None
    return -size if sign == "-" else size


_TAGGED = ("bool", "float", "int", "null", "timestamp")


def _resolve_tagged(name: str, text: str) -> Scalar:
    if name == "timestamp":
        if not _TIMESTAMP.fullmatch(text):
            raise ScalarError("it is not a !!timestamp")
        return text
    value = _resolve(text)
    if name == "float" and type(value) is int and value < 2**63:
        return float(value)
    if {bool: "bool", float: "float", int: "int", type(None): "null"}.get(type(value)) != name:
        raise ScalarError(f"it is not a !!{name}")
    return value


def _binary(text: str) -> str:
    data = decode_base64(text)
    if data is None:
        raise ScalarError("!!binary needs base64")
    return decode_like_go(data)


def _go_float(value: float) -> str:
    """*value* as Go's ``FormatFloat(value, 'g', -1, 32)`` writes it, with the names that YAML has for the others."""
    try:
        (single,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        single = math.copysign(math.inf, value)
    if not math.isfinite(single):
        return ".nan" if math.isnan(single) else ".inf" if single > 0 else "-.inf"
    shortest = next(text for digits in range(9) if _same_single(text := f"{single:.{digits}e}", single))
    mantissa, _, exponent = shortest.partition("e")
    if -4 <= int(exponent) < 6:
        return f"{float(shortest):.{max(0, len(mantissa.lstrip('-').replace('.', '')) - 1 - int(exponent))}f}"
    return f"{mantissa}e{exponent}"


def _same_single(text: str, single: float) -> bool:
    try:
        return bool(struct.unpack("f", struct.pack("f", float(text)))[0] == single)
    except OverflowError:
        return False
