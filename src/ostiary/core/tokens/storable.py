"""What all token stores agree on: which text and times they can keep, and how far back a clock may go.

Called by `tokens` before it writes, by `revocations`, and by the stores themselves. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from ostiary.interfaces.token_store import Session

# A clock that was set back by less than this is waited for: until then the time stands still.
CLOCK_TOLERANCE = timedelta(seconds=2)


def check_storable(session: Session) -> None:
    """Raise `ValueError` for text that a store could only keep as other text, or for a time without a zone."""
    for text in _texts(session):
        check_text(text)
    for time in (session.created_at, session.expires_at):
        if time.tzinfo is None:
            raise ValueError("a time has no time zone")


def check_text(text: str) -> None:
    # Neither error quotes the text. A surrogate has no UTF-8, and a NUL ends text in half of the programs after us.
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("a name has a character that is not text: NUL, or half of a pair")


def _texts(session: Session) -> Iterator[str]:
    user = session.user
    yield from (session.id, session.provider, session.client, user.username, user.uid, *user.groups)
    for key, values in user.extra:
        yield from (key, *values)
    for group, source in session.sources:
        yield from (group, source)
