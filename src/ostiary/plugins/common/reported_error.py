"""What an OAuth server says went wrong (``error``, ``error_description``; RFC 6749, 4.1.2.1 and 5.2), to be quoted.

It comes from outside, even through a browser. So it is bounded, cannot steer a terminal, and has no secret in it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.core.secrets.redact import redact
from ostiary.core.text import printable

LONGEST_CODE = 64
LONGEST_DESCRIPTION = 200


def reported_error(code: str, description: str = "", *, sent: Iterable[str] = ()) -> str:
    """*code*, with the *description* in quotation marks; empty without a code. *sent* are secrets it may repeat."""
    sent = tuple(sent)
    code, description = _plain(code, LONGEST_CODE, sent), _plain(description, LONGEST_DESCRIPTION, sent)
    return f'{code} ("{description}")' if code and description else code


def _plain(text: str, most: int, sent: tuple[str, ...]) -> str:
    # Cut twice: half a secret at the first cut would not be recognised, and the second one takes it away.
    text = printable(redact(" ".join(text[: 10 * most].split()), secrets=sent)).replace('"', "'")
    return text if len(text) <= most else text[:most] + ("…" if most == LONGEST_DESCRIPTION else "")
