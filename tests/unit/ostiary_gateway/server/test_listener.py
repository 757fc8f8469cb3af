"""Why the gateway cannot listen, and what helps."""

from __future__ import annotations

import errno
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from ostiary.errors import ConfigurationError
from ostiary_gateway.config.listen import ServerTls
from ostiary_gateway.config.values import Address
from ostiary_gateway.server.listener import ListenerFiles, bind, certificate_expiry, listen_hint
from ostiary_gateway.testing import FakeClock


def test_an_address_that_is_taken_is_somebody_elses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigurationError) as raised:
        bind(Address("127.0.0.1", taken.getsockname()[1]))
    assert raised.value.hint == "stop the process that listens there, or choose another address"


def test_an_address_of_another_machine_cannot_be_freed_by_stopping_anything() -> None:
    # For documentation (RFC 5737): no machine has it.
    with pytest.raises(ConfigurationError) as raised:
        bind(Address("192.0.2.1", 0))
    assert raised.value.hint == "name an address of this machine; 0.0.0.0 or [::] stands for all of them"


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "choose a port from 1024 on, or give the process CAP_NET_BIND_SERVICE"),
        (errno.ENOMEM, "choose another address"),
        (None, "choose another address"),
    ],
)
def test_every_reason_has_a_hint_that_fits(number: int | None, hint: str) -> None:
    assert listen_hint(number) == hint


class TestFiles:
    @pytest.fixture
    def clock(self) -> FakeClock:
        """Well after the files were written."""
        clock = FakeClock()
        clock.advance(minutes=10)
        return clock

    @pytest.fixture
    def tls(self, tmp_path: Path, clock: FakeClock) -> ServerTls:
        tls = ServerTls(tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "clients.pem")
        for path in (tls.certificate, tls.key, tls.client_ca):
            assert isinstance(path, Path)
            write(path, "old", clock)
        return tls

    def test_what_stays_as_it_is_has_not_changed(self, tls: ServerTls, clock: FakeClock) -> None:
        files = ListenerFiles(tls, clock)
        clock.advance(hours=1)
        assert not files.have_changed()

    @pytest.mark.parametrize("name", ["tls.crt", "tls.key", "clients.pem"])
    def test_each_file_counts_and_a_change_is_told_once(self, name: str, tls: ServerTls, clock: FakeClock) -> None:
        files = ListenerFiles(tls, clock)
        write(tls.certificate.with_name(name), "renewed", clock)
        clock.advance(seconds=3)
        assert files.have_changed()
        assert not files.have_changed()

    def test_a_file_that_was_written_a_moment_ago_may_be_half_of_it(self, tls: ServerTls, clock: FakeClock) -> None:
        files = ListenerFiles(tls, clock)
        write(tls.certificate, "renewed", clock)
        assert not files.have_changed()
        clock.advance(seconds=3)
        assert files.have_changed()

    def test_a_file_that_is_away_is_waited_for(self, tls: ServerTls, clock: FakeClock) -> None:
        files = ListenerFiles(tls, clock)
        tls.certificate.unlink()
        clock.advance(seconds=3)
        assert not files.have_changed()
        write(tls.certificate, "renewed", clock)
        clock.advance(seconds=3)
        assert files.have_changed()

    def test_without_tls_nothing_changes(self, clock: FakeClock) -> None:
        assert not ListenerFiles(None, clock).have_changed()


def write(path: Path, text: str, clock: FakeClock) -> None:
    path.write_text(text)
    os.utime(path, (clock.now().timestamp(),) * 2)


def test_the_certificate_of_the_listener_itself_says_when_it_expires(tmp_path: Path, ca: trustme.CA) -> None:
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    leaf = ca.issue_cert("localhost", not_after=expires)
    path = tmp_path / "tls.crt"
    path.write_bytes(b"".join(pem.bytes() for pem in [*leaf.cert_chain_pems, ca.cert_pem]))
    assert certificate_expiry(ServerTls(path, path)) == expires.timestamp()
    assert certificate_expiry(None) == 0
