"""Keeping the file of an API server fresh, also while the gateway does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError, OstiaryError, ProviderError
from ostiary_gateway.cli.issuer_kubernetes import RETRY_SECONDS, WRITTEN_APART_SECONDS, RevokedCredentialsSource, follow
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials

AWAY = ProviderError("the gateway is unreachable", code="gateway-unreachable")


def revoked(head: int, *ids: str) -> RevokedCredentials:
    return RevokedCredentials("https://gateway.example", ("prod",), head=head, credential_ids=ids)


class Responses(RevokedCredentialsSource):
    """What a gateway answers, one after the other."""

    def __init__(self, *answers: RevokedCredentials | OstiaryError) -> None:
        super().__init__("https://gateway.example", "none", None)
        self.rest = list(answers)
        self.asked: list[int | None] = []

    def fetch(self, after: int | None = None) -> RevokedCredentials:
        self.asked.append(after)
        answer = self.rest.pop(0)
        if isinstance(answer, OstiaryError):
            raise answer
        return answer


def run(source: Responses, path: Path) -> list[float]:
    """Follow until there is nothing more to answer; gives how long was waited."""
    waits: list[float] = []

    def render(each: RevokedCredentials) -> str:
        return f"{each.credential_ids}\n"

    follow(source, str(path), render, sleep=waits.append, is_over=lambda: not source.rest)
    return waits


def test_the_file_changes_with_the_list_and_whoever_asks_says_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "file"
    source = Responses(revoked(1), revoked(4, "a"), revoked(4, "a"))
    run(source, path)
    assert path.read_text() == "('a',)\n"
    assert source.asked == [None, 1, 4]
    assert path.stat().st_mode & 0o777 == 0o600


def test_permissions_stay_and_a_list_that_is_the_same_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("()\n")
    path.chmod(0o644)
    before = path.stat()
    run(Responses(revoked(1), revoked(2)), path)
    assert path.stat().st_ino == before.st_ino
    run(Responses(revoked(3, "a")), path)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.stat().st_ino != before.st_ino


def test_a_gateway_that_is_away_leaves_the_file_and_is_asked_less_and_less_often(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    waits = run(Responses(revoked(1, "a"), *[AWAY] * 6, revoked(2, "a", "b")), path)
    assert waits == [*RETRY_SECONDS, RETRY_SECONDS[-1], RETRY_SECONDS[-1], WRITTEN_APART_SECONDS]
    assert path.read_text() == "('a', 'b')\n"
    told = capsys.readouterr().err
    assert told.count("the gateway is unreachable") == 1
    assert told.count("ostiary: the gateway answers again") == 1


def test_a_flood_of_revocations_is_written_in_portions(tmp_path: Path) -> None:
    """An API server builds its authenticators anew for each file."""
    source = Responses(revoked(1), revoked(2, "a"), revoked(2, "a"), revoked(900, "a", "b"))
    assert run(source, tmp_path / "file") == [WRITTEN_APART_SECONDS] * 2
    assert source.asked == [None, 1, 2, 2]


def test_the_first_time_must_succeed(tmp_path: Path) -> None:
    with pytest.raises(ProviderError):
        run(Responses(AWAY, revoked(1)), tmp_path / "file")
    with pytest.raises(ConfigurationError, match="the file cannot be written"):
        run(Responses(revoked(1)), tmp_path / "none" / "file")


def test_a_file_that_cannot_be_written_for_a_while_is_tried_again(tmp_path: Path) -> None:
    """Here: a directory that is gone, and comes back while the next attempt is waited for."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "file"
    source = Responses(revoked(1), revoked(2, "a"), revoked(3, "a", "b"))

    def come_back(_: float) -> None:
        if moved.exists():
            moved.rename(folder)

    moved = tmp_path / "elsewhere"

    def render(each: RevokedCredentials) -> str:
        if each.head == 2:
            folder.rename(moved)
        return f"{each.credential_ids}\n"

    follow(source, str(path), render, sleep=come_back, is_over=lambda: not source.rest)
    assert path.read_text() == "('a', 'b')\n"
    assert [each.name for each in folder.iterdir()] == ["file"]
