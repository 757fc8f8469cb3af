"""Reasons of provider exceptions, for the log and the audit event, without secrets. Never shown to the user."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from ostiary.core.redaction import redact
from ostiary.errors import OstiaryError

LONGEST_REASON = 500


def reason_of(error: BaseException, *, sent: Iterable[str] = ()) -> str:
    """Return the text of *error* with secrets redacted.

    A third-party library may quote its input. If its text contains a value of *sent*, in any encoding, the whole text
    is left out: a redacted part would still reveal something about a short password.
    """
    if isinstance(error, OstiaryError):
        return _without_secrets(": ".join(filter(None, (error.summary, error.cause))))
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:
        return kind
    if any(spelling in text for value in sent for spelling in _spellings(value)):
        return f"{kind}, and its text, which repeats what was sent, is left out"
    return _without_secrets(f"{kind}: {text}" if text else kind)


def _without_secrets(text: str) -> str:
    # Truncate twice: `redact` does not recognise a secret that the first cut splits, and the second cut removes it.
    return redact(text[: 4 * LONGEST_REASON])[:LONGEST_REASON]


def _spellings(value: str) -> Iterator[str]:
    data = value.encode("utf-8", "surrogatepass")
    yield from (value, repr(value)[1:-1], ascii(value)[1:-1], json.dumps(value)[1:-1], quote(data), quote_plus(data))
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        yield encoded.decode().rstrip("=")
