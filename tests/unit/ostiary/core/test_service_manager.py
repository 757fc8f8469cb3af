"""What systemd is told, on a real socket."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.core.service_manager import STOP_MARGIN, ServiceManager
from tests.support.service_manager import NotifySocket


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    address = f"@ostiary-{uuid.uuid4().hex}" if request.param == "abstract" else str(tmp_path / "notify")
    with NotifySocket(address) as listening:
        yield listening


async def test_start_reload_and_stop_are_told(systemd: NotifySocket) -> None:
    service = ServiceManager(systemd.address, status="serving on 127.0.0.1:8443")
    service.tell_started()
    service.tell_reloading()
    service.tell_reloaded()
    service.tell_stopping(timedelta(minutes=5))
    started, reloading, reloaded, stopping = systemd.waiting()
    assert started == {"READY": "1", "STATUS": "serving on 127.0.0.1:8443"}
    assert reloading["RELOADING"] == "1"
    assert int(reloading["MONOTONIC_USEC"]) > 0
    assert reloaded == started
    assert stopping["STOPPING"] == "1"
    # systemd does not kill what is still draining, whatever its unit allows.
    assert int(stopping["EXTEND_TIMEOUT_USEC"]) == (300 + STOP_MARGIN.total_seconds()) * 1_000_000


async def test_a_reload_that_changed_nothing_shows_in_the_status(systemd: NotifySocket) -> None:
    service = ServiceManager(systemd.address, status="serving")
    service.tell_started()
    service.tell_reloaded("the configuration was not reloaded")
    assert systemd.waiting()[1] == {"READY": "1", "STATUS": "serving; the configuration was not reloaded"}


async def test_a_reload_before_the_start_does_not_end_the_start(systemd: NotifySocket) -> None:
    service = ServiceManager(systemd.address)
    service.tell_reloading()
    service.tell_reloaded()
    assert systemd.waiting() == []


async def test_a_start_is_told_once(systemd: NotifySocket) -> None:
    service, told = ServiceManager(systemd.address), []
    service.on_started = lambda: told.append("started")
    service.tell_started()
    service.tell_started()
    assert len(systemd.waiting()) == 1
    assert told == ["started"]


async def test_the_watchdog_hears_of_us_at_least_twice_a_period(systemd: NotifySocket) -> None:
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
    service = ServiceManager.from_environment(environment)
    service.tell_started()
    alive = [(await asyncio.to_thread(systemd.receive))[0] for _ in range(4)]
    assert alive[0]["READY"] == "1"
    assert alive[1:] == [{"WATCHDOG": "1"}] * 3


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}],
    ids=["none", "zero", "no number", "for another process"],
)
async def test_a_watchdog_that_is_not_ours_is_not_fed(systemd: NotifySocket, watchdog: dict[str, str]) -> None:
    service = ServiceManager.from_environment({"NOTIFY_SOCKET": systemd.address, **watchdog})
    before = asyncio.all_tasks()
    service.tell_started()
    assert asyncio.all_tasks() == before


def test_processes_that_we_start_do_not_inherit_the_socket() -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    ServiceManager.from_environment(environment)
    assert environment == {"HOME": "/"}


async def test_without_systemd_nothing_is_sent() -> None:
    service = ServiceManager.from_environment({})
    service.tell_started()
    service.tell_stopping(timedelta())


async def test_a_systemd_that_is_gone_is_a_warning_and_no_outage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "ostiary.gateway"):
        ServiceManager(str(tmp_path / "gone")).tell_started()
    assert [record.message for record in caplog.records] == ["systemd could not be told"]
