"""What the authenticator tells the metrics about the plugin's certificates, at each refresh."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry

from ostiary.client.authenticator import Authenticator
from ostiary.client.exec.plugin import ExecPlugin
from ostiary.client.metrics import ROTATION_AGE, TTL_SECONDS, PrometheusMetrics
from ostiary.kubeconfig import ExecConfig
from ostiary.model import ClientCertificate
from ostiary.wire.client_authentication import V1
from ostiary_gateway.testing import FakeClock
from tests.support.plugins import PluginScript

Issue = Callable[[str], tuple[str, str]]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def authenticator(plugin: PluginScript, clock: FakeClock, registry: CollectorRegistry) -> Authenticator:
    config = ExecConfig(api_version=V1, command=str(plugin.path), interactive_mode="Never")
    return Authenticator(
        ExecPlugin(config, user="dev"), clock=clock, metrics=PrometheusMetrics(registry, clock), jitter=lambda: 0.5
    )


@pytest.fixture
def refresh(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock, client_certificate: Issue
) -> Callable[[str], ClientCertificate]:
    """Have the plugin answer with a certificate for a name, which serves for ten minutes."""

    def refreshed(name: str) -> ClientCertificate:
        certificate, key = client_certificate(name)
        plugin.answer(certificate=certificate, key=key, expires_at=clock.now() + timedelta(minutes=10))
        held = authenticator.get().certificate
        assert held is not None
        return held

    return refreshed


def test_the_time_to_live_is_that_of_the_certificate_of_the_last_refresh(
    authenticator: Authenticator,
    plugin: PluginScript,
    clock: FakeClock,
    registry: CollectorRegistry,
    refresh: Callable[[str], ClientCertificate],
) -> None:
    """E55."""
    assert registry.get_sample_value(TTL_SECONDS) == math.inf
    ends = refresh("dev").not_after
    assert ends is not None
    assert registry.get_sample_value(TTL_SECONDS) == (ends - clock.now()).total_seconds()
    plugin.answer(token="a-token-alone")
    clock.advance(minutes=11)
    authenticator.get()
    assert registry.get_sample_value(TTL_SECONDS) == math.inf


def test_a_replaced_certificate_is_as_old_as_it_has_been_valid(
    clock: FakeClock, registry: CollectorRegistry, refresh: Callable[[str], ClientCertificate]
) -> None:
    """E56."""
    begins = refresh("one").not_before
    assert begins is not None
    assert registry.get_sample_value(f"{ROTATION_AGE}_count") == 0
    clock.advance(minutes=11)
    refresh("two")
    assert registry.get_sample_value(f"{ROTATION_AGE}_count") == 1
    assert registry.get_sample_value(f"{ROTATION_AGE}_sum") == (clock.now() - begins).total_seconds()
