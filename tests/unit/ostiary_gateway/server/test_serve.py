"""Starting the gateway: an address that cannot be bound is named by its setting."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import default_config
from ostiary_gateway.config.values import Address
from ostiary_gateway.server.config_source import ConfigSource
from ostiary_gateway.server.serve import run


@pytest.fixture(autouse=True)
def signal_mask() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.parametrize(("section", "what"), [("listen", "requests"), ("health", "health and metrics")])
def test_an_address_that_is_taken_is_named_by_its_setting(section: str, what: str) -> None:
    config, free = default_config(), Address("127.0.0.1", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        listen, health = (address, free) if section == "listen" else (free, address)
        config = replace(config, listen=replace(config.listen, address=listen), health=health)
        with pytest.raises(ConfigurationError) as raised:
            run(ConfigSource(), config)
    assert raised.value.summary == f"the gateway cannot listen on {address} for {what}"
    assert raised.value.where == f"{section}.address"
