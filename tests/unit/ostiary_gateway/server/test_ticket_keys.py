"""The keys of tickets are the same in all workers, and what they sealed hours ago stays sealed."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest
import trustme

from ostiary_gateway.config.listen import ServerTls
from ostiary_gateway.server.listener import server_context
from ostiary_gateway.server.ticket_keys import MOST_PERIODS, PERIOD_SECONDS, TicketKeys
from ostiary_gateway.testing import FakeClock
from tests.support.tls_in_memory import VERSIONS, server_files, shake_hands, trusting


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tls(tmp_path: Path, ca: trustme.CA) -> ServerTls:
    return ServerTls(*server_files(tmp_path, ca))


def two_workers(tls: ServerTls, clock: FakeClock) -> tuple[tuple[TicketKeys, ssl.SSLContext], ...]:
    supervisor = TicketKeys.create(clock)
    workers = [TicketKeys.from_json(json.loads(json.dumps(supervisor.to_json())), clock) for _ in range(2)]
    return tuple((keys, server_context(tls, ticket_keys=keys)) for keys in workers)


def test_a_client_resumes_at_another_worker(tls: ServerTls, clock: FakeClock, ca: trustme.CA) -> None:
    (_, one), (_, other) = two_workers(tls, clock)
    client = trusting(ca)
    assert shake_hands(other, client, shake_hands(one, client).client.session).resumed


def test_after_a_while_old_tickets_open_nothing_and_workers_still_agree(
    tls: ServerTls, clock: FakeClock, ca: trustme.CA
) -> None:
    (first, one), (second, other) = two_workers(tls, clock)
    client = trusting(ca)
    old = shake_hands(one, client).client.session
    clock.advance(seconds=PERIOD_SECONDS)
    first.renew()
    assert not shake_hands(one, client, old).resumed
    # The other one was late, and skips what it missed.
    clock.advance(seconds=2 * PERIOD_SECONDS)
    first.renew()
    second.renew()
    new = shake_hands(one, client).client.session
    assert shake_hands(other, client, new).resumed


def test_a_worker_that_starts_later_gets_the_keys_of_now(tls: ServerTls, clock: FakeClock, ca: trustme.CA) -> None:
    supervisor = TicketKeys.create(clock)
    early = TicketKeys.from_json(supervisor.to_json(), clock)
    one = server_context(tls, ticket_keys=early)
    clock.advance(seconds=5 * PERIOD_SECONDS)
    early.renew()
    other = server_context(tls, ticket_keys=TicketKeys.from_json(supervisor.to_json(), clock))
    client = trusting(ca)
    assert shake_hands(other, client, shake_hands(one, client).client.session).resumed


def test_a_clock_that_goes_back_changes_nothing(tls: ServerTls, clock: FakeClock, ca: trustme.CA) -> None:
    keys = TicketKeys.create(clock)
    context, client = server_context(tls, ticket_keys=keys), trusting(ca)
    session = shake_hands(context, client).client.session
    clock.set_back(hours=100)
    keys.renew()
    assert shake_hands(context, client, session).resumed


def test_a_clock_that_jumps_by_ages_gives_new_keys_at_once(tls: ServerTls, clock: FakeClock, ca: trustme.CA) -> None:
    keys = TicketKeys.create(clock)
    context, client = server_context(tls, ticket_keys=keys), trusting(ca)
    session = shake_hands(context, client).client.session
    before = keys.to_json()
    clock.advance(seconds=(MOST_PERIODS + 1) * PERIOD_SECONDS)
    keys.renew()
    assert keys.to_json()[0] != before[0]
    assert not shake_hands(context, client, session).resumed


def test_a_supervisor_that_does_not_answer_leaves_a_worker_with_keys_of_its_own(clock: FakeClock) -> None:
    assert TicketKeys.from_json(None, clock).to_json() != TicketKeys.from_json(None, clock).to_json()


def test_they_are_not_shown(clock: FakeClock) -> None:
    keys = TicketKeys.create(clock)
    assert str(keys.to_json()[0]) not in repr(keys)


# --- what they are for ---


def test_another_certificate_ends_what_was_agreed_under_the_old_one(
    tls: ServerTls, clock: FakeClock, ca: trustme.CA
) -> None:
    keys, client = TicketKeys.create(clock), trusting(ca)
    session = shake_hands(server_context(tls, ticket_keys=keys), client).client.session
    assert shake_hands(server_context(tls, ticket_keys=keys), client, session).resumed
    server_files(tls.certificate.parent, ca)
    assert not shake_hands(server_context(tls, ticket_keys=keys), client, session).resumed


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_where_client_certificates_count_nobody_resumes(
    version: ssl.TLSVersion, tls: ServerTls, clock: FakeClock, ca: trustme.CA
) -> None:
    """Not even with a ticket from before they did: the client is asked for its certificate."""
    keys, client = TicketKeys.create(clock), trusting(ca, version)
    ca.issue_cert("me@example.test").configure_cert(client)
    session = shake_hands(server_context(tls, ticket_keys=keys), client).client.session
    authority = tls.certificate.with_name("clients.pem")
    ca.cert_pem.write_to_path(authority)
    context = server_context(ServerTls(tls.certificate, tls.key, authority), ticket_keys=keys)
    for offered in (session, shake_hands(context, client).client.session):
        shaken = shake_hands(context, client, offered)
        assert not shaken.resumed
        assert shaken.server.getpeercert()


def test_it_can_be_turned_off(tls: ServerTls, clock: FakeClock, ca: trustme.CA) -> None:
    off = ServerTls(tls.certificate, tls.key, resumption=False)
    context, client = server_context(off, ticket_keys=TicketKeys.create(clock)), trusting(ca)
    assert not shake_hands(context, client, shake_hands(context, client).client.session).resumed
