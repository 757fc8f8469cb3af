"""What a configuration makes of tracing: nothing, or an exporter for its collector and trust in its proxies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary import __version__
from ostiary.errors import TransportError
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.observability.tracing import TraceContext
from ostiary_gateway.server.features import RequestTracing, open_tracing
from ostiary_gateway.testing import FakeClock
from tests.support.collector import collecting
from tests.unit.ostiary_gateway.proxy.gateways import configured

NOWHERE = "http://127.0.0.1:1"
INCOMING = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", True)


def opened(folder: Path, *, listen: dict[str, Any] | None = None, **tracing: Any) -> RequestTracing | None:
    sections: dict[str, Any] = {"tracing": {"endpoint": f"{NOWHERE}/v1/traces", **tracing}}
    if listen is not None:
        sections |= {"listen": {"address": "127.0.0.1:0", **listen}, "insecureAllowAll": True}
    return open_tracing(configured(folder, NOWHERE, **sections), FakeClock(), Metrics())


async def test_without_settings_there_is_nothing(tmp_path: Path) -> None:
    assert open_tracing(configured(tmp_path, NOWHERE), FakeClock(), Metrics()) is None


@pytest.mark.parametrize(
    ("parents", "address", "continued"),
    [
        ("TrustedProxies", "10.0.7.9", True),
        ("TrustedProxies", "10.0.8.9", False),
        ("TrustedProxies", "unix", False),
        ("Always", "10.0.8.9", True),
        ("Never", "10.0.7.9", False),
    ],
)
async def test_a_peer_is_trusted_as_the_settings_say(
    tmp_path: Path, parents: str, address: str, continued: bool
) -> None:
    tracing = opened(tmp_path, listen={"trustedProxies": ["10.0.7.0/24"]}, parents=parents)
    assert tracing is not None
    for _ in range(2):
        trace = tracing._traces.tracer.start(INCOMING, address)
        assert (trace.context.trace_id == INCOMING.trace_id) == continued
    await tracing.exporter.close()


async def test_the_spans_say_which_program_sends_them(tmp_path: Path) -> None:
    with collecting() as collector:
        instances = set()
        for _ in range(2):
            tracing = opened(tmp_path, endpoint=collector.url, serviceName="door")
            assert tracing is not None
            tracer = tracing._traces.tracer
            tracer.finish(tracer.start(None, ""), "GET", 0.0, {}, failed=False)
            await tracing.exporter.close()
            assert collector.resource["service.name"] == "door"
            assert collector.resource["service.version"] == __version__
            instances.add(collector.resource["service.instance.id"])
        assert len(instances) == 2


async def test_an_authority_that_is_gone_stops_the_start(tmp_path: Path) -> None:
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    config = configured(tmp_path, NOWHERE, tracing={"endpoint": "https://localhost/", "tls": {"ca": "ca.pem"}})
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(TransportError):
        open_tracing(config, FakeClock(), Metrics())
