"""The revocation file: its lines, when they count, and what is not understood."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.watched_file import UNSETTLED_SECONDS
from ostiary.model import UserInfo
from ostiary_gateway.authentication.revocation_file import MAX_BYTES, MAX_WAITS, Line, RevocationFile, parse_line
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import RENEWAL_PREFIX, Issued, Tokens, digest, new_token
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock

Kind = RevocationKind


@pytest.fixture
def clock() -> FakeClock:
    # Ahead of the machine's own clock, by which the file's times are told.
    return FakeClock(datetime.now(UTC) + timedelta(days=1))


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "revoked"


@pytest.fixture
async def file(path: Path, tokens: Tokens, clock: FakeClock) -> RevocationFile:
    """A file that was looked at when it did not exist."""
    file = RevocationFile(path, tokens, clock=clock)
    assert await file.check_now() == 0
    return file


async def signed_in(tokens: Tokens, username: str, *groups: str) -> Issued:
    return await tokens.issue(UserInfo(username, groups=groups), provider="staff")


async def alive(tokens: Tokens, *issued: Issued) -> list[bool]:
    return [await tokens.find(each.token.reveal()) is not None for each in issued]


# --- a line ---


def test_each_kind_of_line_is_understood() -> None:
    """S65."""
    token = new_token().reveal()
    assert parse_line(f"token {token}") == Line(Kind.TOKEN, digest(token).hex())
    assert parse_line(f"token {digest(token).hex()} ") == Line(Kind.TOKEN, digest(token).hex())
    assert parse_line("session 4Nq0rJ6u") == Line(Kind.SESSION, "4Nq0rJ6u")
    assert parse_line("user ann # not a comment") == Line(Kind.USER, "ann # not a comment")
    assert parse_line("group a,b|c") == Line(Kind.GROUP, "a,b|c")
    assert parse_line('user " ann\\u0020"') == Line(Kind.USER, " ann ")
    at = datetime(2026, 11, 15, 8, tzinfo=UTC)
    for text in ("2026-11-15T08:00:00Z", "2026-11-15t08:00:00z", "2026-11-15T10:00:00.000+02:00"):
        assert parse_line(f"before {text}") == Line(Kind.BEFORE, "", at)
    for text in ("", "  ", "# user ann", "#"):
        assert parse_line(text) is None


def test_what_is_not_understood_is_not_guessed(subtests: pytest.Subtests) -> None:
    """S65."""
    cases = [
        "ann",
        "user",
        "user ",
        "user  ann",
        "user ann ",
        "user\tann",
        "User ann",
        " user ann",
        'user "ann',
        'user "a" b',
        'user ["ann"]'.replace("[", '"['),
        'user ""',
        'user "\\ud800"',
        'group "\\u0000"',
        "token",
        "token ost_abc",
        "token " + "0" * 63,
        "before",
        "before 2026-11-15",
        "before 2026-11-15T10:00:00",
        "before 2026-11-31T10:00:00Z",
        "before yesterday",
        "everything",
    ]
    for text in cases:
        with subtests.test(text=text), pytest.raises(ValueError):
            parse_line(text)


@pytest.mark.parametrize("name", ['"ann', '"ann" x', '"', '"\n"'])
def test_a_name_in_quotation_marks_is_told_to_be_json(name: str) -> None:
    with pytest.raises(ValueError, match="must be a JSON string"):
        parse_line(f"user {name}")


@given(st.text(max_size=60))
@settings(max_examples=200)
def test_any_text_is_understood_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert isinstance(parse_line(text), Line | None)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20))
@settings(max_examples=200)
def test_every_name_can_be_written(name: str) -> None:
    """S14, S65."""
    assert parse_line(f"user {json.dumps(name)}") == Line(Kind.USER, name)


# --- the file ---


async def test_each_line_withdraws_what_it_names(file: RevocationFile, path: Path, tokens: Tokens) -> None:
    """S65."""
    by_token, by_digest, by_session = [await signed_in(tokens, "ann") for _ in range(3)]
    by_user, by_group = await signed_in(tokens, "mallory"), await signed_in(tokens, "bob", "dev", "contractors")
    stays = await signed_in(tokens, "ann", "dev")
    path.write_text(
        "# people who left\n\n"
        f"token {by_token.token.reveal()}\r\n"
        f"token {digest(by_digest.token.reveal()).hex()}\n"
        f"session {by_session.session.id}\n"
        "user mallory\n"
        "group contractors\n"
        "before 2020-01-01T00:00:00Z\n"
    )
    assert await file.check_now() == 6
    assert await alive(tokens, by_token, by_digest, by_session, by_user, by_group, stays) == [False] * 5 + [True]


async def test_a_renewal_token_can_be_named_too(file: RevocationFile, path: Path, tokens: Tokens) -> None:
    issued = await signed_in(tokens, "ann")
    path.write_text(f"token {issued.renewal.reveal()}\n")
    assert issued.renewal.reveal().encode().startswith(RENEWAL_PREFIX)
    assert await file.check_now() == 1
    assert await tokens.store.count() == 1


async def test_an_occurrence_revokes_once(file: RevocationFile, path: Path, tokens: Tokens, clock: FakeClock) -> None:
    """S65: it ends what began before it was seen; who signs in afterwards is in again."""
    before = await signed_in(tokens, "ann")
    path.write_text("user ann\n")
    assert await file.check_now() == 1
    clock.advance(1)
    after = await signed_in(tokens, "ann")
    assert await file.check_now() == 0
    path.write_text("user ann\nuser bob\n")
    assert await file.check_now() == 1
    assert await alive(tokens, before, after) == [False, True]


async def test_appending_a_line_that_is_in_the_file_already_revokes_again(
    file: RevocationFile, path: Path, tokens: Tokens
) -> None:
    """S65: ``echo 'user ann' >> revoked`` revokes now, however often it was run before."""
    for _ in range(3):
        ann, bob = await signed_in(tokens, "ann"), await signed_in(tokens, "bob")
        with path.open("a") as opened:
            opened.write("user ann\n")
        assert await file.check_now() == 1
        assert await file.check_now() == 0
        assert await alive(tokens, ann, bob) == [False, True]


async def test_the_same_lines_written_again_revoke_nothing(
    path: Path, tokens: Tokens, subtests: pytest.Subtests
) -> None:
    """An editor truncates, or removes, or replaces the file before its content is back."""
    clock = FakeClock(datetime.now(UTC))
    file = RevocationFile(path, tokens, clock=clock)
    content = "user ann\nuser bob\nuser ann\n"
    path.write_text(content)
    assert await file.check_now() == 2
    ann = await signed_in(tokens, "ann")

    def truncate() -> None:
        path.write_text("")

    def remove() -> None:
        path.unlink()

    def replace() -> None:
        path.with_name("new").write_text("user bob\nuser ann\nuser ann\n")
        path.with_name("new").replace(path)

    for change in (truncate, remove, replace):
        with subtests.test(change.__name__):
            change()
            assert await file.check_now() == 0
            path.write_text(content)
            assert await file.check_now() == 0
            assert await alive(tokens, ann) == [True]


async def test_a_file_that_was_removed_for_good_revokes_again_when_it_is_back(path: Path) -> None:
    clock = FakeClock(datetime.now(UTC))
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    file = RevocationFile(path, tokens, clock=clock)
    path.write_text("user ann\n")
    assert await file.check_now() == 1
    ann = await signed_in(tokens, "ann")
    path.unlink()
    for _ in range(2):
        assert await file.check_now() == 0
        clock.advance(UNSETTLED_SECONDS + 1)
    path.write_text("user ann\n")
    assert await file.check_now() == 1
    assert await alive(tokens, ann) == [False]


async def test_after_a_restart_only_what_was_appended_meanwhile_revokes(
    file: RevocationFile, path: Path, tokens: Tokens, clock: FakeClock
) -> None:
    path.write_text("user ann\nuser bob\n")
    assert await file.check_now() == 2
    os.utime(path)
    assert await RevocationFile(path, tokens, clock=clock).check_now() == 0
    path.write_text("user ann\nuser bob\nuser ann\n")
    assert await RevocationFile(path, tokens, clock=clock).check_now() == 1
    told = (await tokens.store.revocations_after(0)).revocations
    assert [each.value for each in told] == ["ann", "bob", "ann"]


async def test_a_line_removed_while_the_gateway_was_down_revokes_when_it_is_back(
    file: RevocationFile, path: Path, tokens: Tokens, clock: FakeClock
) -> None:
    path.write_text("user ann\n")
    assert await file.check_now() == 1
    path.write_text("# nobody\n")
    restarted = RevocationFile(path, tokens, clock=clock)
    assert await restarted.check_now() == 0
    ann = await signed_in(tokens, "ann")
    path.write_text("user ann\n")
    assert await restarted.check_now() == 1
    assert await alive(tokens, ann) == [False]


async def test_replicas_with_copies_of_the_file_apply_an_occurrence_once(tmp_path: Path, clock: FakeClock) -> None:
    """The copies of a ConfigMap change one after the other, and somebody may sign in again in between."""
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    paths = [tmp_path / name for name in ("first", "second", "third")]
    replicas = [RevocationFile(path, tokens, clock=clock) for path in paths]
    for replica in replicas:
        await replica.check_now()
    for content in ("user ann\n", "user ann\nuser ann\n", "user ann\nuser ann\nuser ann\n"):
        ann = await signed_in(tokens, "ann")
        paths[0].write_text(content)
        assert await replicas[0].check_now() == 1
        assert await alive(tokens, ann) == [False]
        again = await signed_in(tokens, "ann")
        for path, replica in zip(paths[1:], replicas[1:], strict=True):
            clock.advance(30)
            path.write_text(content)
            assert await replica.check_now() == 0
        assert await alive(tokens, again) == [True]
    # The line is taken out again, in all copies, and put back in.
    for content, applied in (("", [0, 0, 0]), ("user ann\n", [1, 0, 0])):
        for path, replica, expected in zip(paths, replicas, applied, strict=True):
            path.write_text(content)
            assert await replica.check_now() == expected


async def test_a_line_appended_to_another_replicas_own_file_much_later_revokes(
    tmp_path: Path, clock: FakeClock
) -> None:
    """It is no copy of the first one: a revocation must not be lost because of another machine's file."""
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    paths = [tmp_path / name for name in ("first", "second")]
    replicas = [RevocationFile(path, tokens, clock=clock) for path in paths]
    for replica in replicas:
        await replica.check_now()
    for path, replica in zip(paths, replicas, strict=True):
        ann = await signed_in(tokens, "ann")
        path.write_text("user ann\n")
        assert await replica.check_now() == 1
        assert await alive(tokens, ann) == [False]
        clock.advance(hours=1)


async def test_a_worker_that_dies_before_it_has_revoked_leaves_the_line_to_the_others(
    path: Path, tmp_path: Path, clock: FakeClock
) -> None:
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    ann = await signed_in(tokens, "ann")
    for _ in range(2):
        with path.open("a") as opened:
            opened.write("user ann\n")
        dying = RevocationFile(path, DyingTokens(tokens.store, clock=clock), clock=clock)
        with pytest.raises(asyncio.CancelledError):
            await dying.check_now()
        assert await alive(tokens, ann) == [True]
        file = RevocationFile(path, tokens, clock=clock)
        assert [await file.check_now() for _ in range(MAX_WAITS + 1)] == [0] * MAX_WAITS + [1]
        assert await alive(tokens, ann) == [False]
        assert await file.check_now() == 0
        ann = await signed_in(tokens, "ann")


class StoreWithoutObjects(MemoryTokenStore):
    put_object = None  # type: ignore[assignment]


class DyingTokens(Tokens):
    """Of a process that is killed at the moment when it is about to revoke."""

    async def revoke(self, *_: object, **__: object) -> int:
        raise asyncio.CancelledError


async def test_a_store_without_objects_counts_in_each_process(path: Path, clock: FakeClock) -> None:
    tokens = Tokens(StoreWithoutObjects(clock=clock), clock=clock)
    file = RevocationFile(path, tokens, clock=clock)
    await file.check_now()
    for _ in range(2):
        ann = await signed_in(tokens, "ann")
        with path.open("a") as opened:
            opened.write("user ann\n")
        assert [await file.check_now(), await file.check_now()] == [1, 0]
        assert await alive(tokens, ann) == [False]


async def test_a_line_that_is_put_in_again_counts_again(
    file: RevocationFile, path: Path, tokens: Tokens, clock: FakeClock
) -> None:
    for content, alive_after in [("user ann\n", False), ("# nobody\n", True), ("user ann\n", False)]:
        clock.advance(1)
        issued = await signed_in(tokens, "ann")
        path.write_text(content)
        await file.check_now()
        assert await alive(tokens, issued) == [alive_after]


async def test_at_the_start_a_line_counts_from_the_last_change_of_the_file(path: Path) -> None:
    """S65: restarting the gateway does not sign anybody out once more."""
    clock = FakeClock(datetime.now(UTC) - timedelta(hours=1))
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    before = await signed_in(tokens, "ann")
    path.write_text("user ann\n")
    os.utime(path, (0, 0))  # prepared long ago, put in place just now
    clock.advance(hours=2)
    after = await signed_in(tokens, "ann")
    assert await RevocationFile(path, tokens, clock=clock).check_now() == 1
    assert await alive(tokens, before, after) == [False, True]


async def test_everything_before_a_time_ends(
    file: RevocationFile, path: Path, tokens: Tokens, clock: FakeClock
) -> None:
    before = await signed_in(tokens, "ann")
    clock.advance(10)
    at = clock.now()
    clock.advance(10)
    after = await signed_in(tokens, "ann")
    path.write_text(f"before {at.isoformat()}\n")
    assert await file.check_now() == 1
    assert await alive(tokens, before, after) == [False, True]


async def test_a_line_that_is_not_understood_is_reported_by_number_and_the_others_count(
    file: RevocationFile, path: Path, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    """S65."""
    issued = await signed_in(tokens, "ann")
    canary = new_token().reveal()[:-1]
    path.write_bytes(f"tokn x\ntoken {canary}\nuser ann\n".encode() + b"user \xff\xfe\n")
    with caplog.at_level(logging.INFO):
        assert await file.check_now() == 1
        assert await file.check_now() == 0
    assert await alive(tokens, issued) == [False]
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [message.split(" of the")[0] for message in errors] == ["line 1", "line 2", "line 4"]
    assert canary[4:20] not in caplog.text


async def test_a_file_as_large_as_is_read_counts_to_its_last_line_and_a_larger_one_is_an_error(
    file: RevocationFile, path: Path, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    """A part of it must not be taken for all: the lines at its end would be ignored in silence."""
    ann, bob = await signed_in(tokens, "ann"), await signed_in(tokens, "bob")
    end = b"\nuser ann\n"
    path.write_bytes(b"#" * (MAX_BYTES - len(end)) + end)
    assert await file.check_now() == 1
    assert await alive(tokens, ann, bob) == [False, True]
    path.write_bytes(b"user bob\n" + b"#" * (MAX_BYTES - 8))
    assert await file.check_now() == 0
    assert "it is larger than 16 MiB" in caplog.text
    assert await alive(tokens, bob) == [True]


async def test_a_last_line_that_may_be_half_written_waits_for_the_next_look(path: Path) -> None:
    clock = FakeClock(datetime.now(UTC))
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    file = RevocationFile(path, tokens, clock=clock)
    await file.check_now()
    ann, anne = await signed_in(tokens, "ann"), await signed_in(tokens, "anne")
    path.write_text("user bob\nuser ann")
    assert await file.check_now() == 1
    path.write_text("user bob\nuser anne")
    assert await file.check_now() == 0
    assert await file.check_now() == 1
    assert await alive(tokens, ann, anne) == [True, False]


async def test_a_file_that_is_exchanged_is_read(file: RevocationFile, path: Path, tokens: Tokens) -> None:
    """As the link of a mounted ConfigMap is."""
    for folder, content in [("one", "user ann\n"), ("two", "user bob\n")]:
        (path.parent / folder).mkdir()
        (path.parent / folder / "revoked").write_text(content)
    issued = [await signed_in(tokens, "ann"), await signed_in(tokens, "bob")]
    path.symlink_to("one/revoked")
    assert await file.check_now() == 1
    link = path.parent / "link"
    link.symlink_to("two/revoked")
    link.replace(path)
    assert await file.check_now() == 1
    assert await alive(tokens, *issued) == [False, False]


async def test_a_file_that_cannot_be_read_is_reported_once(
    file: RevocationFile, path: Path, tokens: Tokens, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("user ann\n")
    assert await file.check_now() == 1
    path.unlink()
    path.mkdir()
    for _ in range(3):
        assert await file.check_now() == 0
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
    clock.advance(1)
    issued = await signed_in(tokens, "ann")
    path.rmdir()
    path.write_text("user ann\n")
    assert await file.check_now() == 0, "the line is not new"
    assert await alive(tokens, issued) == [True]


async def test_a_line_is_tried_again_until_the_store_takes_it(
    path: Path, tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S65, T5."""
    folder = tmp_path / "not yet"
    tokens = Tokens(SqliteTokenStore(folder / "tokens.db", clock=clock), clock=clock)
    file = RevocationFile(path, tokens, clock=clock)
    path.write_text("user ann\nuser bob\n")
    for _ in range(3):
        assert await file.check_now() == 0
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == 1
    folder.mkdir()
    assert await file.check_now() == 2
    assert await file.check_now() == 0
    await tokens.store.close()


async def test_it_is_followed_while_it_runs(file: RevocationFile, path: Path, tokens: Tokens) -> None:
    """S64, S65."""
    running = asyncio.ensure_future(file.run(every=0.001))
    path.write_text("user ann\n")
    await asyncio.wait_for(tokens.store.wait_for_revocations(0, 600), 30)
    (told,) = (await tokens.store.revocations_after(0)).revocations
    assert (told.kind, told.value, told.by) == (Kind.USER, "ann", "revocation file, line 1")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_line_that_another_worker_has_seen_first_counts_once(path: Path) -> None:
    """Else the slower worker would end the session of whoever signed in again between the two."""
    tokens = Tokens(MemoryTokenStore())
    workers = [RevocationFile(path, tokens) for _ in range(2)]
    path.write_text("")
    for worker in workers:
        await worker.check_now()
    path.write_text("user ann\nbefore 2099-01-01T00:00:00Z\n")
    assert await workers[0].check_now() == 2
    again = await signed_in(tokens, "ann")
    await workers[1].check_now()
    assert await tokens.find(again.token.reveal()) is not None


async def test_workers_that_see_a_line_at_the_same_time_revoke_once(path: Path, tmp_path: Path) -> None:
    path.write_text("")
    async with AsyncExitStack() as stack:
        workers = []
        for _ in range(4):
            store = SqliteTokenStore(tmp_path / "tokens.db")
            stack.push_async_callback(store.close)
            workers.append(RevocationFile(path, Tokens(store)))
            await workers[-1].check_now()
        path.write_text("user ann\n")
        for _ in workers:
            await asyncio.gather(*(worker.check_now() for worker in workers))
        assert (await store.revocations_after(0)).head == 1


async def test_replicas_that_see_a_line_at_the_same_time_revoke_once(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        replicas = []
        for number in range(4):
            store = SqliteTokenStore(tmp_path / "tokens.db")
            stack.push_async_callback(store.close)
            replicas.append(RevocationFile(tmp_path / f"copy {number}", Tokens(store)))
            await replicas[-1].check_now()
        for occurrences in (1, 2):
            for number, _ in enumerate(replicas):
                (tmp_path / f"copy {number}").write_text("user ann\n" * occurrences)
            for _ in range(2):
                await asyncio.gather(*(replica.check_now() for replica in replicas))
            assert (await store.revocations_after(0)).head == occurrences


async def test_whoever_else_holds_the_lock_of_the_file_does_not_hold_up_a_revocation(
    file: RevocationFile, path: Path, tokens: Tokens
) -> None:
    path.write_text("user ann\n")
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert [await file.check_now() for _ in range(MAX_WAITS + 1)] == [0] * MAX_WAITS + [1]
    assert await tokens.sequence() == 1


async def test_a_line_whose_time_lies_ahead_is_refused_by_number_and_locks_nobody_out(
    file: RevocationFile, path: Path, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("before 2099-01-01T00:00:00Z\n")
    await file.check_now()
    assert await tokens.sequence() == 0
    assert any("line 1 of the revocation file" in record.getMessage() for record in caplog.records)
    assert await tokens.find((await signed_in(tokens, "ann")).token.reveal()) is not None


async def test_a_worker_that_starts_with_the_line_leaves_it_to_those_who_saw_it_appear(
    path: Path, clock: FakeClock
) -> None:
    """With the clock set back, what the late one withdraws by date began before nothing."""
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    early = RevocationFile(path, tokens, clock=clock)
    await early.check_now()
    issued = await signed_in(tokens, "ann")
    clock.set_back(hours=1)
    path.write_text("user ann\n")
    late = RevocationFile(path, tokens, clock=clock)
    await late.check_now()
    await early.check_now()
    assert await tokens.find(issued.token.reveal()) is None
