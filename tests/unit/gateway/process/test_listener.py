"""Why the gateway cannot listen, and what helps."""

from __future__ import annotations

import errno
import socket

import pytest

from ostiary.errors import ConfigurationError
from ostiary.gateway.config.values import Address
from ostiary.gateway.process.listener import bind, listen_hint


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
