"""The life of keys: each is published before it signs, and until its last JWT has ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ostiary_gateway.issuer.keys import (
    LONGEST_LIFETIME,
    MOST_KEYS,
    TAKEN_UP_AFTER,
    KeyLife,
    KeyRing,
    RingKey,
    SigningKey,
    rotated_now,
    with_due_changes,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
LIFE = KeyLife(timedelta(hours=24), timedelta(hours=1))
KEY = SigningKey.generate()


class Keys:
    """Makes keys that differ by their names; making real ones thousands of times would take a minute."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> RingKey:
        self.made += 1
        return RingKey(f"key-{self.made}", {"kid": f"key-{self.made}"}, KEY)


def ids(keys: tuple[RingKey, ...]) -> list[str]:
    return [key.id for key in keys]


def test_the_first_key_signs_at_once() -> None:
    ring = with_due_changes(KeyRing(), START, LIFE, Keys())
    signing = ring.signing(START)
    assert signing is not None
    assert ids(ring.published_keys(START)) == [signing.id] == ["key-1"]


def test_a_ring_that_is_right_is_the_same_object() -> None:
    keys = Keys()
    ring = with_due_changes(KeyRing(), START, LIFE, keys)
    assert with_due_changes(ring, START + timedelta(hours=12), LIFE, keys) is ring
    assert keys.made == 1


def test_through_a_week_every_jwt_can_be_verified_with_any_key_set_of_the_last_hour() -> None:
    """Looked at every minute: who verifies may have fetched the keys an hour ago, or just before the JWT ends."""
    keys, ring = Keys(), KeyRing()
    published: dict[datetime, list[str]] = {}
    signed: list[tuple[datetime, str]] = []
    moment, minute = START, timedelta(minutes=1)
    while moment < START + timedelta(days=7):
        ring = with_due_changes(ring, moment, LIFE, keys)
        signing = ring.signing(moment)
        assert signing is not None
        published[moment] = ids(ring.published_keys(moment))
        signed.append((moment, signing.id))
        moment += minute
    assert keys.made == 8
    assert max(map(len, published.values())) == 2
    for at, key in signed:
        earlier, at_its_end = at - LIFE.publish_ahead + minute, at + LONGEST_LIFETIME
        assert earlier < START or key in published[earlier], (at, key)
        assert at_its_end not in published or key in published[at_its_end], (at, key)


def test_a_store_that_was_away_for_days_leaves_a_key_that_signs_at_once() -> None:
    keys = Keys()
    ring = with_due_changes(KeyRing(), START, LIFE, keys)
    later = START + timedelta(days=3)
    assert ring.signing(later) is None
    ring = with_due_changes(ring, later, LIFE, keys)
    assert ids(ring.keys) == ["key-2"]
    assert ring.signing(later) is not None


def test_a_key_that_cannot_be_opened_neither_signs_nor_is_published() -> None:
    foreign = RingKey(
        "foreign", {"kid": "foreign"}, None, START, START + timedelta(hours=1), START + timedelta(hours=2)
    )
    assert KeyRing((foreign,)).published_keys(START) == ()


def test_rotating_now_keeps_the_old_key_published_and_drops_one_that_never_signed() -> None:
    keys = Keys()
    ring = with_due_changes(KeyRing(), START, LIFE, keys)
    soon = START + timedelta(hours=23, minutes=30)
    ring = with_due_changes(ring, soon, LIFE, keys)
    assert ids(ring.keys) == ["key-1", "key-2"]
    ring = rotated_now(ring, soon, LIFE, keys, withdraw=False)
    assert ids(ring.published_keys(soon)) == ["key-1", "key-3"]
    start = soon + TAKEN_UP_AFTER
    for moment, expected in ((soon, "key-1"), (start - timedelta(seconds=1), "key-1"), (start, "key-3")):
        signing = ring.signing(moment)
        assert signing is not None
        assert signing.id == expected
    assert ids(ring.published_keys(start + LONGEST_LIFETIME)) == ["key-1", "key-3"]
    assert ids(ring.published_keys(start + LONGEST_LIFETIME + timedelta(minutes=2))) == ["key-3"]


def test_withdrawing_publishes_the_new_key_alone() -> None:
    keys = Keys()
    ring = with_due_changes(KeyRing(), START, LIFE, keys)
    ring = rotated_now(ring, START, LIFE, keys, withdraw=True)
    assert ids(ring.published_keys(START)) == ["key-2"]
    signing = ring.signing(START)
    assert signing is not None


def test_rotating_again_and_again_leaves_a_bounded_ring() -> None:
    keys, ring, moment = Keys(), KeyRing(), START
    for _ in range(100):
        ring = rotated_now(ring, moment, LIFE, keys, withdraw=False)
        moment += timedelta(seconds=1)
    assert len(ring.keys) == MOST_KEYS
    assert ids(ring.keys)[-1] == "key-100"
