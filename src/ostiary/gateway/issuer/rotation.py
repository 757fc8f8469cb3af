"""What is due on a ring of keys: the first key, the next one ahead of its time, the end of the last. Pure.

Called by `stored_keys`, by one replica at a time: whoever writes the ring first has rotated it, and the others read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ostiary.gateway.issuer.key_ring import CLOCK_SKEW, KeyRing, RingKey

# What any JWT may live for, whatever was configured when it was signed.
LONGEST_LIFETIME = timedelta(minutes=15)
# More than `rotated_now` leaves behind in any emergency.
MOST_KEYS = 16

# Whoever signs or publishes has read the keys again after this time: see `issuer.SIGNING_FRESH_SECONDS`.
TAKEN_UP_AFTER = timedelta(seconds=10)

# Makes a key that signs in this time; only the times are chosen here.
MakeKey = Callable[[], RingKey]


@dataclass(frozen=True, slots=True)
class KeyLife:
    sign_for: timedelta
    publish_ahead: timedelta


def with_due_changes(ring: KeyRing, now: datetime, life: KeyLife, make_key: MakeKey) -> KeyRing:
    """The ring as it must be now; the same object if it is right as it is."""
    keys = [key for key in ring.keys if now < key.published_until]
    last = max((key.signs_until for key in keys), default=now)
    if KeyRing(tuple(keys)).signing(now) is None:
        # The first key, or the store was away for so long that the next one was never made.
        keys.append(_set_times(make_key(), now, life))
    elif last - now <= life.publish_ahead:
        keys.append(_set_times(make_key(), last, life))
    return ring if keys == list(ring.keys) else KeyRing(tuple(keys))


def rotated_now(ring: KeyRing, now: datetime, life: KeyLife, make_key: MakeKey, *, withdraw: bool) -> KeyRing:
    """A new key signs as soon as every replica publishes it.

    With *withdraw* it signs at once, and no other key is published any more: what they signed ends.
    """
    if withdraw:
        return KeyRing((_set_times(make_key(), now, life),))
    start = now + TAKEN_UP_AFTER
    other_keys = [_retire(key, start) for key in ring.keys if now < key.published_until]
    # Those that never signed, by no replica's clock, need not be published; of too many the newest count.
    other_keys = [key for key in other_keys if key.signs_from <= start + CLOCK_SKEW][-(MOST_KEYS - 1) :]
    return KeyRing((*other_keys, _set_times(make_key(), start, life)))


def _set_times(key: RingKey, start: datetime, life: KeyLife) -> RingKey:
    until = start + life.sign_for
    return replace(key, signs_from=start, signs_until=until, published_until=_published_until(until))


def _retire(key: RingKey, at: datetime) -> RingKey:
    until = min(key.signs_until, at)
    return replace(key, signs_until=until, published_until=_published_until(until))


def _published_until(signs_until: datetime) -> datetime:
    return signs_until + LONGEST_LIFETIME + CLOCK_SKEW
