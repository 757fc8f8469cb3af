"""The reason in a provider's exception, for the log and the audit record, without secrets.

Called where providers are called: at sign-in and by the authorization chain. The user is told none of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from urllib.parse import quote, quote_plus

from ostiary.core.redaction import redact
from ostiary.errors import OstiaryError

LONGEST_REASON = 500


def reason_of(error: BaseException, *, sent: Iterable[str] = ()) -> str:
    """The text of *error*, without what looks like a secret.

    A foreign library may quote what it was given. If its text has something of *sent* in it, however spelled, then
    none of the text is shown: of a short password, even a gap would reveal something.
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
    # Cut twice: half a secret at the first cut would not be recognised, and the second one takes it away.
    return redact(text[: 4 * LONGEST_REASON])[:LONGEST_REASON]


def _spellings(value: str) -> Iterator[str]:
    data = value.encode("utf-8", "surrogatepass")
    yield from (value, repr(value)[1:-1], ascii(value)[1:-1], json.dumps(value)[1:-1], quote(data), quote_plus(data))
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        yield encoded.decode().rstrip("=")
