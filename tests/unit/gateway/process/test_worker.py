"""One process of the gateway: what it reports about itself."""

from __future__ import annotations

from ostiary.gateway.config import default_config
from ostiary.gateway.config.values import Address
from ostiary.gateway.process.listener import bind
from ostiary.gateway.process.worker import Worker


async def test_a_probe_reads_plus_as_good() -> None:
    """H4."""
    worker = Worker(default_config(), bind(Address("127.0.0.1", 0)))
    good = (await worker.report()).text()
    assert good == "[+] accepting requests\n[+] token store\n[+] revocations\nready\n"
    await worker.stop(drain=0.0)
    assert (await worker.report()).text().startswith("[-] accepting requests: it is stopping\n")
