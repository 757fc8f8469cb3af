"""Password files: what they may hold, what is asked of a client, and what nobody can learn from trying."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import argon2
import bcrypt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest
from ostiary_gateway.providers import htpasswd as module
from ostiary_gateway.providers.common.lockout import LockoutSettings
from ostiary_gateway.providers.htpasswd import HtpasswdIdentity
from ostiary_gateway.testing import FakeClock

PASSWORD = "correct horse"
FAST_ARGON2 = argon2.PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


def bcrypt_line(username: str, password: str = PASSWORD) -> str:
    return f"{username}:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}"


def basic(username: str, password: str = PASSWORD, *, address: str = "192.0.2.1") -> LoginRequest:
    encoded = b64encode(f"{username}:{password}".encode()).decode()
    return with_authorization(f"Basic {encoded}", address=address)


def with_authorization(value: str, *, address: str = "192.0.2.1") -> LoginRequest:
    return LoginRequest("GET", "/auth", headers=(("authorization", value),), remote_address=address)


Make = Callable[..., HtpasswdIdentity]


@pytest.fixture
def make(tmp_path: Path, clock: FakeClock) -> Make:
    def build(*lines: str, **options: object) -> HtpasswdIdentity:
        path = tmp_path / "users"
        path.write_text("\n".join(lines) + "\n")
        return HtpasswdIdentity(path=path, clock=clock, **options)  # type: ignore[arg-type]

    return build


# --- the file ---


@pytest.mark.needs("htpasswd")
@pytest.mark.parametrize("password", ["correct horse", "größer als ß", "p:a:s:s", "x" * 72, "x" * 80])
async def test_what_htpasswd_writes_is_understood(tmp_path: Path, password: str) -> None:
    path = tmp_path / "users"
    for create, name in (("-c", "alice"), ("", "bob")):
        command = ["htpasswd", *filter(None, [create]), "-i", "-B", "-C", "5", str(path), name]
        subprocess.run(command, input=password.encode(), check=True, capture_output=True)
    assert "$2y$" in path.read_text()
    provider = HtpasswdIdentity(path=path)
    assert await provider.handle_client(basic("bob", password)) == UserInfo("bob")
    with pytest.raises(LoginRefused):
        await provider.handle_client(basic("bob", "y" + password[1:]))


async def test_argon2id_is_understood(make: Make) -> None:
    provider = make(f"alice:{FAST_ARGON2.hash(PASSWORD)}")
    assert await provider.handle_client(basic("alice")) == UserInfo("alice")
    with pytest.raises(LoginRefused):
        await provider.handle_client(basic("alice", "wrong"))


def test_a_weak_or_unreadable_hash_stops_the_start(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        "alice:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
        "alice:$apr1$zI1Yt3Jb$6OQq2vnfB5fCnvRjYwXJm/",
        "alice:plain-marked-secret",
        "alice:rl0uE7.T4hcYk",
        "alice:",
        "alice",
        ":$2y$05$abcdefghijklmnopqrstuuJq3J0.Y5g8gk2Jv1n4S6HnWkzvY5b1S",
        "alice:$2y$31$" + "a" * 53,
        "alice:$argon2i$v=19$m=64,t=1,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAA",
        "alice:$argon2id$v=19$m=99999999,t=1,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAA",
        "alice:$argon2id$v=19$m=64,t=9999,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAA",
    ]
    for line in cases:
        with subtests.test(line=line):
            tmp_path = tmp_path_factory.mktemp("case")
            (tmp_path / "users").write_text(f"# ours\n\n{line}\n")
            reading = ConfigReader(parse("path: users"))
            HtpasswdIdentity.from_config(reading.root, Context(directory=tmp_path))
            (problem,) = reading.problems
            assert problem.place.path == "path"
            assert "users:3" in problem.message
            assert "marked-secret" not in str(problem)


def test_a_user_that_stands_twice_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"{bcrypt_line('alice')}\n{bcrypt_line('alice', 'other')}\n")
    reading = ConfigReader(parse("path: users"))
    HtpasswdIdentity.from_config(reading.root, Context(directory=tmp_path))
    assert "twice" in reading.problems[0].message


@pytest.mark.parametrize(
    "text", ["{}", "path: absent", "{path: users, realm: 'a\"b'}", "{path: users, concurrency: 0}"]
)
def test_mistaken_settings_stop_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "users").write_text(bcrypt_line("alice"))
    reading = ConfigReader(parse(text))
    HtpasswdIdentity.from_config(reading.root, Context(directory=tmp_path))
    assert len(reading.problems) == 1


async def test_a_changed_password_holds_at_once(make: Make, tmp_path: Path) -> None:
    provider = make(bcrypt_line("alice"))
    await provider.handle_client(basic("alice"))
    (tmp_path / "users").write_text(bcrypt_line("alice", "new"))
    assert await provider.handle_client(basic("alice", "new"))
    with pytest.raises(LoginRefused):
        await provider.handle_client(basic("alice"))


async def test_a_user_taken_out_of_the_file_is_refused_at_renewal(make: Make, tmp_path: Path) -> None:
    provider = make(bcrypt_line("alice"), bcrypt_line("bob"))
    assert await provider.revalidate(UserInfo("bob")) == UserInfo("bob")
    (tmp_path / "users").write_text(bcrypt_line("alice"))
    with pytest.raises(LoginRefused):
        await provider.revalidate(UserInfo("bob"))


@pytest.mark.parametrize("content", [None, b"alice:{SHA}x", b"\xff\xfe"])
async def test_a_file_that_breaks_later_is_an_outage_and_no_refusal(
    make: Make, tmp_path: Path, content: bytes | None
) -> None:
    """S37."""
    provider = make(bcrypt_line("alice"))
    (tmp_path / "users").unlink()
    if content is not None:
        (tmp_path / "users").write_bytes(content)
    with pytest.raises(ProviderError):
        await provider.handle_client(basic("alice"))


# --- what a client sends ---


@pytest.mark.parametrize(
    "request_",
    [
        LoginRequest("GET", "/auth"),
        with_authorization("Bearer abc"),
        with_authorization("Basic"),
        with_authorization("Basic !!!"),
        with_authorization("Basic " + b64encode(b"alice").decode()),
        with_authorization("Basic " + b64encode(b"\xff:\xff").decode()),
        basic("alice", ""),
        basic("", PASSWORD),
        basic("alice", "a\0b"),
        basic("alice", "x" * 2000),
        LoginRequest("GET", "/auth", form=(("username", "alice"), ("password", PASSWORD))),
        LoginRequest("GET", "/auth", query=(("username", "alice"), ("password", PASSWORD))),
        LoginRequest("POST", "/auth", form=(("username", "alice"), ("password", PASSWORD), ("password", "x"))),
        LoginRequest("GET", "/auth", headers=basic("alice").headers * 2),
    ],
    ids=range(14),
)
async def test_what_cannot_be_right_is_asked_for_again(make: Make, request_: LoginRequest) -> None:
    """S28, S41."""
    said = await make(bcrypt_line("alice")).handle_client(request_)
    assert isinstance(said, Challenge)
    assert said.www_authenticate == 'Basic realm="ostiary", charset="UTF-8"'


async def test_the_scheme_may_be_written_in_any_case(make: Make) -> None:
    encoded = b64encode(f"alice:{PASSWORD}".encode()).decode()
    assert await make(bcrypt_line("alice")).handle_client(with_authorization(f"bAsIc  {encoded}"))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    username=st.text(
        st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=":"), min_size=1, max_size=12
    ).filter(lambda name: not name.startswith("#")),
    password=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=12),
)
async def test_names_and_passwords_are_opaque(make: Make, username: str, password: str) -> None:
    """S14."""
    provider = make(bcrypt_line(username, password))
    assert await provider.handle_client(basic(username, password)) == UserInfo(username)


@pytest.mark.parametrize("other", ["Alice", " alice", "alice ", "ａlice"])
async def test_a_name_that_only_looks_alike_is_another_one(make: Make, other: str) -> None:
    """S14."""
    with pytest.raises(LoginRefused):
        await make(bcrypt_line("alice")).handle_client(basic(other))


# --- what nobody learns ---


async def test_a_wrong_password_and_an_unknown_name_are_told_alike(make: Make) -> None:
    """L9."""
    provider = make(bcrypt_line("alice"))
    told = []
    for request in (basic("alice", "wrong"), basic("nobody", "wrong")):
        with pytest.raises(LoginRefused) as refused:
            await provider.handle_client(request)
        told.append((str(refused.value), refused.value.www_authenticate, refused.value.retry_after))
    assert told[0] == told[1]
    assert told[0][1].startswith("Basic ")


async def test_an_unknown_name_costs_a_hash_like_that_of_a_user(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """L9."""
    costs: list[bytes] = []
    checkpw = bcrypt.checkpw

    def spy(password: bytes, hashed: bytes) -> bool:
        costs.append(hashed[:7])
        return checkpw(password, hashed)

    monkeypatch.setattr(bcrypt, "checkpw", spy)
    provider = make(bcrypt_line("alice"))
    for name in ("alice", "nobody"):
        with pytest.raises(LoginRefused):
            await provider.handle_client(basic(name, "wrong"))
    assert costs == [b"$2b$04$"] * 2


@pytest.mark.parametrize(
    "line", [bcrypt_line("alice"), f"alice:{FAST_ARGON2.hash(PASSWORD)}", ""], ids=["bcrypt", "argon2id", "empty"]
)
async def test_no_password_fits_a_name_that_nobody_has(make: Make, line: str) -> None:
    """L9."""
    provider = make(line)
    with pytest.raises(LoginRefused):
        await provider.handle_client(basic("nobody", "."))


async def test_the_password_is_in_no_error(make: Make) -> None:
    secret = "-".join(("marked", "secret"))
    request = basic("alice", secret)
    with pytest.raises(LoginRefused) as refused:
        await make(bcrypt_line("alice")).handle_client(request)
    told = "".join(traceback.format_exception(refused.value)) + repr(refused.value) + repr(request)
    assert secret not in told
    assert request.headers[0][1] not in told


async def test_guessing_is_stopped_for_known_and_unknown_names_alike(make: Make) -> None:
    """L9."""
    provider = make(bcrypt_line("alice"), lockout=LockoutSettings(attempts=2))
    for name in ("alice", "nobody"):
        outcomes = []
        for _ in range(3):
            with pytest.raises(LoginRefused) as refused:
                await provider.handle_client(basic(name, "wrong"))
            outcomes.append(refused.value.retry_after)
        assert outcomes == [None, None, 900]
    assert await provider.handle_client(basic("alice", address="192.0.2.9"))


async def test_only_so_many_passwords_are_checked_at_a_time(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock, gate = 0, 0, threading.Lock(), threading.Event()

    def slow(password: bytes, hashed: bytes) -> bool:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(10)
        with lock:
            running -= 1
        return True

    monkeypatch.setattr(bcrypt, "checkpw", slow)
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    provider = make(bcrypt_line("alice"), concurrency=2)
    first = [asyncio.create_task(provider.handle_client(basic("alice"))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(ProviderError):
        await provider.handle_client(basic("alice"))
    gate.set()
    assert await asyncio.gather(*first) == [UserInfo("alice")] * 3
    assert most <= 2
    assert await provider.handle_client(basic("alice"))
