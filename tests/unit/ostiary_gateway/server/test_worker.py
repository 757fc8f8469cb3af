"""One process of the gateway: what it reports about itself."""

from __future__ import annotations

import asyncio

from ostiary_gateway.config import default_config
from ostiary_gateway.config.values import Address
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker


async def test_a_probe_reads_plus_as_good() -> None:
    """H4."""
    worker = Worker(default_config(), bind(Address("127.0.0.1", 0)))
    good = (await worker.report()).text()
    assert good == "[+] accepting requests\n[+] token store\n[+] revocations\nready\n"
    await worker.close(drain=0.0)
    assert (await worker.report()).text().startswith("[-] accepting requests: it is stopping\n")


async def test_audit_events_stay_counted_when_the_configuration_that_made_them_is_closed() -> None:
    worker = Worker(default_config(), bind(Address("127.0.0.1", 0)))
    await worker.start()
    for number in range(3):
        worker.app.auditor.accept("{}")
        await worker.reload(default_config())
        assert _audit_events(worker) == number + 1
    async with asyncio.timeout(30):
        while worker.retiring:
            assert _audit_events(worker) == 3
            await asyncio.sleep(0)
    assert _audit_events(worker) == 3
    await worker.close(drain=0.0)


def _audit_events(worker: Worker) -> float:
    series = worker.snapshot()["ostiary_gateway_audit_events_total"]["series"]
    return sum(value for _, value in series if isinstance(value, float | int))
