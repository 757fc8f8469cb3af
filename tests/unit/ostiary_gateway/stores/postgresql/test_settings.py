"""The settings of the PostgreSQL store: addresses, and what does not go together."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.core.yaml import ConfigReader, parse
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.stores.postgresql.settings import DatabaseServer, Pooler, PostgresqlSettings, parse_address

LEAST = "hosts: [db]\ndatabase: d\nuser: u\n"


def test_an_address_is_a_host_or_a_folder_with_a_port_if_need_be(subtests: pytest.Subtests) -> None:
    cases = [
        ("db-1.example.com", DatabaseServer("db-1.example.com", 5432), False),
        ("db-1.example.com:6432", DatabaseServer("db-1.example.com", 6432), False),
        ("10.0.0.1:5433", DatabaseServer("10.0.0.1", 5433), False),
        ("[2001:db8::1]:5433", DatabaseServer("2001:db8::1", 5433), False),
        ("[::1]", DatabaseServer("::1", 5432), True),
        ("127.0.0.1", DatabaseServer("127.0.0.1", 5432), True),
        ("LOCALHOST", DatabaseServer("LOCALHOST", 5432), True),
        ("/run/postgresql", DatabaseServer("/run/postgresql", 5432), True),
        ("/run/postgresql:5433", DatabaseServer("/run/postgresql", 5433), True),
    ]
    for text, address, is_local in cases:
        with subtests.test(text=text, address=address, is_local=is_local):
            assert parse_address(text) == address
            assert address.is_local is is_local
            assert parse_address(str(address)) == address


def test_what_is_no_address_is_refused(subtests: pytest.Subtests) -> None:
    for text in ["", "a b", "user:secret@host", "2001:db8::1", "host:port", "postgresql://db/x"]:
        with subtests.test(text=text), pytest.raises(ValueError, match="like db-1"):
            parse_address(text)


def read(text: str, directory: Path) -> tuple[PostgresqlSettings, list[str]]:
    reading = ConfigReader(parse(text))
    settings = read_settings(PostgresqlSettings, reading.root, directory)
    return settings, [f"{problem.place.path}: {problem.message}" for problem in reading.problems]


def test_little_has_to_be_said(tmp_path: Path) -> None:
    settings, problems = read(LEAST, tmp_path)
    assert problems == []
    assert settings.addresses == settings.listen_addresses == (DatabaseServer("db", 5432),)
    assert (settings.schema, settings.pooler, settings.tls) == ("ostiary", Pooler.NONE, None)


@pytest.mark.parametrize(
    ("more", "addresses"),
    [
        ("notifications: false", ()),
        ("pooler: transaction", ()),
        ("pooler: transaction\nlisten: {hosts: [other]}", (DatabaseServer("other", 5432),)),
    ],
)
def test_notifications_come_from_where_they_can_be_had(
    tmp_path: Path, more: str, addresses: tuple[DatabaseServer, ...]
) -> None:
    settings, problems = read(LEAST + more, tmp_path)
    assert problems == []
    assert settings.listen_addresses == addresses


def test_a_mistake_is_told_where_it_stands(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    cases = [
        ("database: d\nuser: u", "hosts: it is missing: where the database is"),
        ("hosts: []\ndatabase: d\nuser: u", "hosts: it is missing: where the database is"),
        ("hosts: [a, a]\ndatabase: d\nuser: u", "hosts: duplicate entry in the list"),
        ("hosts: ['u:p@db']\ndatabase: d\nuser: u", "hosts: they must be like db-1"),
        ("hosts: [db]\nuser: u", "database: it is missing"),
        ("hosts: [db]\ndatabase: d", "user: it is missing"),
        (LEAST + "schema: 'a; DROP'", "schema: it must be lower-case letters"),
        (LEAST + "tls: {certificate: c.pem}", "tls.key: a client certificate needs its key"),
        (LEAST + "tls: {key: c.pem}", "tls.certificate: a client certificate needs its key"),
        (LEAST + "notifications: false\nlisten: {hosts: [a]}", "listen: notifications are off"),
        (LEAST + "listen: {}", "listen.hosts: it is missing"),
        (LEAST + "commandTimeout: 2", "commandTimeout: it has no unit"),
    ]
    for text, problem in cases:
        with subtests.test(text=text, problem=problem):
            tmp_path = tmp_path_factory.mktemp("case")
            problems = read(text, tmp_path)[1]
            assert len(problems) == 1
            assert problems[0].startswith(problem)
