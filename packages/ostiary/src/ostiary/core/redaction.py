"""Redacts secrets in foreign text before it becomes part of an error.

Used for the stderr of plugins. Known secrets are always removed. What only looks like a secret is removed generously: a
user who misses a word can run the plugin by hand, but a token that reached a log cannot be recalled.

Every rule runs in linear time for any text: it consumes a whole run of characters and then examines it, repeats
possessively, or is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ostiary.core.text import printable

# The first mark whose ends occur in no known secret is used. If "*" were part of a secret, the mark and the text beside
# it could spell the secret again.
MARKS = ("***", "[redacted]", "███")
SHORTEST_PIECE = 6
SHORTEST_RUN = 24
ELLIPSIS = "…"

_KEY_MARKER = re.compile(r"-----(BEGIN|END) (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----")
# All characters between the markers, including JSON escapes and the headers of old formats.
_KEY_BODY = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-:,\\ \t\r\n"

_DOTTED_RUN = re.compile(r"[A-Za-z0-9_.=-]{20,}+")
_JSON_OBJECT_IN_BASE64 = "eyJ"
_SHORTEST_JWT = 20

_USERINFO = re.compile(r"://[^\s/?#\"'<>@]*+@(?:[^\s/?#\"'<>@]*+@)*")

_NAMED = re.compile(
    r"""
    ( (?: pass(?:word|wd|phrase) | pwd | token | secret | api[_-]?key | access[_-]?key | private[_-]?key )
      s? (?: [_-] (?: access[_-] )? key )?
      \\?["']? [ \t]*+ (?: := | => | [=:] ) [ \t]*+
      (?: (?: bearer | basic ) [ \t]++ )?
    )
    (?: \\" [^"\\\n]*+ (?: (?: \\{3}. | \\(?!") ) [^"\\\n]*+ )* (?: \\" )?
      | " [^"\\\n]*+ (?: \\. [^"\\\n]*+ )* "?
      | ' [^'\n]*+ '?
      | [^\s"'] [^\s"]*+
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)
# A challenge ('Bearer realm="..."') says where to sign in and holds no secret.
_SCHEME = re.compile(r"(\b(?:bearer|basic)[ \t]++[\"']?)(?!(?:realm|error|scope|charset)=)[^\s\"',;]++", re.IGNORECASE)
_PREFIXED = re.compile(
    r"""
    (?<![A-Za-z0-9])
    (?: (?: ost | osr | osb | osp | gh[oprsu] | github_pat ) _ [A-Za-z0-9_-]{6,}+
      | glpat- [A-Za-z0-9_.-]{6,}+
      | (?: AKIA | ASIA ) [A-Z0-9]{8,}+
      | ya29\. [A-Za-z0-9_.-]{6,}+
    )
    """,
    re.VERBOSE,
)
# The characters of our tokens and of signed tokens need no escaping in JSON, URLs and headers.
_TOKEN_RUN = re.compile(r"[A-Za-z0-9_.=-]{20,}+")
_OWN_TOKEN = re.compile(r"os[trbpa]_[A-Za-z0-9_-]{16,}+")
_TOKEN_STARTS = ("ost_", "osr_", "osb_", "osp_", "osa_", _JSON_OBJECT_IN_BASE64)
_RUN = re.compile(r"[A-Za-z0-9+/_=-]++")
_CASE_CHANGE = re.compile(r"[a-z][A-Z]")
_BETWEEN_WORDS = re.compile(r"[+/_=-]")
_WORD = re.compile(r"(?:[A-Z]?[a-z]{0,20}|[A-Z]{2,20})[0-9]{0,4}|k8s|v[0-9]{1,2}(?:alpha|beta)[0-9]{1,2}")


def redact(text: str, *, secrets: Iterable[str] = ()) -> str:
    """Return *text* without the *secrets* and without anything that looks like one, safe for a terminal.

    Every non-empty secret is removed wherever it occurs, so do not pass ordinary words.
    """
    literal_secrets = _literal_secrets(secrets)
    mark = next((mark for mark in MARKS if _is_safe(mark, literal_secrets)), None)
    if mark is None:
        return ""
    text = _without_known(text, literal_secrets, mark)
    text = _without_private_keys(text, mark)
    text = _DOTTED_RUN.sub(lambda run: _without_jwt(run[0], mark), text)
    text = _USERINFO.sub(f"://{mark}@", text)
    text = _NAMED.sub(lambda found: found[1] + mark, text)
    text = _SCHEME.sub(lambda found: found[1] + mark, text)
    text = without_tokens(text, mark)
    text = _PREFIXED.sub(mark, text)
    text = _RUN.sub(lambda run: mark if _looks_random(run[0]) else run[0], text)
    # Again: spelling out a control character adds letters and digits.
    return _without_known(printable(text), literal_secrets, mark)


def without_tokens(text: str, mark: str) -> str:
    """Return *text* with our tokens and signed tokens replaced, even within a word."""
    # Almost no text holds one, and this runs for every URI and every audit event.
    if not any(start in text for start in _TOKEN_STARTS):
        return text
    return _TOKEN_RUN.sub(lambda run: _without_jwt(_OWN_TOKEN.sub(mark, run[0]), mark), text)


def tail(data: bytes, limit: int) -> str:
    """Return the end of *data*, at most *limit* bytes, as text; an ellipsis marks the cut.

    It starts with a whole line, or at least a whole word: `redact` would not recognize half a secret.
    """
    if len(data) <= limit:
        return data.decode("utf-8", "replace")
    before, end = len(data) - limit - 1, len(data.rstrip())
    for boundary in (b"\n", b" "):
        cut = data.find(boundary, before, end)
        if cut >= 0:
            return ELLIPSIS + boundary.decode() + data[cut + 1 :].decode("utf-8", "replace")
    return ELLIPSIS


def _literal_secrets(secrets: Iterable[str]) -> list[str]:
    """Return the secrets and their parts, longest first: a part must not be removed from a longer one."""
    whole = {secret for secret in secrets if secret}
    pieces = {piece for secret in whole for piece in secret.split() if len(piece) >= SHORTEST_PIECE}
    return sorted(whole | pieces, key=len, reverse=True)


def _is_safe(mark: str, known: Iterable[str]) -> bool:
    return not any(mark[0] in secret or mark[-1] in secret or secret in mark for secret in known)


def _without_known(text: str, known: Iterable[str], mark: str) -> str:
    for secret in known:
        text = text.replace(secret, mark)
    return text


def _without_private_keys(text: str, mark: str) -> str:
    """Remove PEM private keys, whole or with either end cut off."""
    pieces, position, inside = [], 0, False
    for marker in _KEY_MARKER.finditer(text):
        between, begins = text[position : marker.start()], marker[1] == "BEGIN"
        if inside:
            pieces.append(between.lstrip(_KEY_BODY) if begins else "")
        else:
            pieces.append(between if begins else between.rstrip(_KEY_BODY))
        if begins or not inside:
            pieces.append(mark)
        position, inside = marker.end(), begins
    rest = text[position:]
    pieces.append(rest.lstrip(_KEY_BODY) if inside else rest)
    return "".join(pieces)


def _without_jwt(run: str, mark: str) -> str:
    start = run.find(_JSON_OBJECT_IN_BASE64)
    if start < 0 or len(run) - start < _SHORTEST_JWT or "." not in run[start:]:
        return run
    return run[:start] + mark


def _looks_random(run: str) -> bool:
    if len(run) < SHORTEST_RUN:
        return False
    digits = sum(map(str.isdigit, run))
    if not digits:
        # One base64 token in a few hundred has no digit. The words of a camelCase name are longer.
        return len(_CASE_CHANGE.findall(run)) * 6 > len(run)
    if not any(map(str.isalpha, run)):
        return False
    # A path, an option or a hyphenated name consists of words, some with a number, and few digits.
    words = _BETWEEN_WORDS.split(run)
    return digits * 3 > len(run) or not all(map(_WORD.fullmatch, words))
