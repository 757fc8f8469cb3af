"""When the plugin runs, and when it does not: one authenticator, many callers, a clock turned by hand."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from ostiary.client.authenticator import Authenticator, shared_authenticator
from ostiary.client.connection import Connection
from ostiary.client.exec.plugin import ExecPlugin
from ostiary.client.retry_on_401 import Rejection
from ostiary.core.single_flight import wait
from ostiary.errors import BackingOff, CredentialError, PluginFailed
from ostiary.kubeconfig import ExecConfig
from ostiary.model import Credential
from ostiary.wire.client_authentication import V1
from ostiary_gateway.testing import FakeClock
from tests.support.plugins import PluginScript, exec_user
from tests.unit.ostiary.client.exec.test_plugin import Counting

REJECTION = Rejection(401, {})
Issue = Callable[[str], tuple[str, str]]


@pytest.fixture
def metrics() -> Counting:
    return Counting()


@pytest.fixture
def authenticator(plugin: PluginScript, clock: FakeClock, metrics: Counting) -> Authenticator:
    config = ExecConfig(api_version=V1, command=str(plugin.path), interactive_mode="Never")
    return Authenticator(
        ExecPlugin(config, user="dev", metrics=metrics), clock=clock, metrics=metrics, jitter=lambda: 0.5
    )


def token(credential: Credential | None) -> str | None:
    return credential.token.reveal() if credential and credential.token else None


def replaced(authenticator: Authenticator, rejected: Credential) -> Credential | None:
    found = authenticator.replacement(rejected, REJECTION)
    return wait(found) if isinstance(found, Future) else found


def landed(authenticator: Authenticator) -> None:
    """Wait until the run in the background is over."""
    run = authenticator._runs.running()
    if run is not None:
        run.exception(30)


class Gate:
    """Holds every run of a plugin until it is opened."""

    def __init__(self, plugin: PluginScript, folder: Path) -> None:
        self._path = folder / "gate"
        os.mkfifo(self._path)
        plugin.before(f'[ -n "$GATE_IS_OPEN" ] || read line < {self._path} || true')

    def open(self) -> None:
        # A writer that comes and goes lets every reader end.
        with open(self._path, "w"):
            pass


@pytest.fixture
def gate(plugin: PluginScript, tmp_path: Path) -> Gate:
    return Gate(plugin, tmp_path)


# --- one run for all ---


def test_the_plugin_runs_once_and_its_answer_serves_until_the_program_ends(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    """E12, E45, F11, F14."""
    first = authenticator.get()
    clock.advance(hours=10_000)
    assert authenticator.get() is first
    assert plugin.runs == 1


def test_64_threads_at_the_start_run_the_plugin_once(
    authenticator: Authenticator, plugin: PluginScript, gate: Gate
) -> None:
    """E20."""
    ready = threading.Barrier(65)

    def caller() -> Credential:
        found = authenticator.current()
        ready.wait(30)
        return wait(found) if isinstance(found, Future) else found

    with ThreadPoolExecutor(64) as pool:
        callers = [pool.submit(caller) for _ in range(64)]
        ready.wait(30)
        gate.open()
        assert len({id(c.result(30)) for c in callers}) == 1
    assert plugin.runs == 1


async def test_64_tasks_at_the_start_run_the_plugin_once(authenticator: Authenticator, plugin: PluginScript) -> None:
    found = await asyncio.gather(*(authenticator.get_async() for _ in range(64)))
    assert len({id(credential) for credential in found}) == 1
    assert plugin.runs == 1


def test_threads_and_tasks_of_two_loops_share_one_run(
    authenticator: Authenticator, plugin: PluginScript, gate: Gate
) -> None:
    """E20."""
    with ThreadPoolExecutor(3) as pool:
        callers = [
            pool.submit(authenticator.get),
            pool.submit(lambda: asyncio.run(authenticator.get_async())),
            pool.submit(lambda: trio.run(authenticator.get_async)),
        ]
        gate.open()
        assert len({id(caller.result(30)) for caller in callers}) == 1
    assert plugin.runs == 1


async def test_a_caller_who_gives_up_does_not_take_the_run_from_the_others(
    authenticator: Authenticator, plugin: PluginScript, gate: Gate
) -> None:
    impatient = asyncio.create_task(authenticator.get_async())
    patient = asyncio.create_task(authenticator.get_async())
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    await asyncio.to_thread(gate.open)
    assert token(await patient) == "token-1"
    assert plugin.runs == 1


# --- expiry ---


def test_after_expiry_the_next_caller_gets_a_new_credential(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    """E1, E44, F14."""
    plugin.answer(token="token-1", expires_at=clock.now() + timedelta(hours=1))
    assert token(authenticator.get()) == "token-1"
    plugin.answer(token="token-2")
    clock.advance(hours=2)
    assert token(authenticator.get()) == "token-2"
    assert plugin.runs == 2


def test_shortly_before_expiry_the_old_credential_serves_while_the_new_one_is_fetched(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock, gate: Gate
) -> None:
    plugin.answer(token="old", expires_at=clock.now() + timedelta(minutes=10))
    waiting = authenticator.current()
    assert isinstance(waiting, Future)
    gate.open()
    wait(waiting)
    plugin.answer(token="new", expires_at=clock.now() + timedelta(minutes=20))
    clock.advance(minutes=9, seconds=40)
    assert token(authenticator.get()) == "old"
    assert token(authenticator.get()) == "old"
    gate.open()
    landed(authenticator)
    assert token(authenticator.get()) == "new"
    assert plugin.runs == 2


def test_when_the_refresh_ahead_fails_the_old_credential_serves_to_its_end(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    plugin.answer(token="old", expires_at=clock.now() + timedelta(minutes=10))
    authenticator.get()
    plugin.exit(1)
    clock.advance(minutes=9, seconds=40)
    assert token(authenticator.get()) == "old"
    landed(authenticator)
    assert token(authenticator.get()) == "old"
    clock.advance(21)
    with pytest.raises(PluginFailed):
        authenticator.get()


def test_a_bad_answer_does_not_lengthen_the_life_of_the_old_credential(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    """E52."""
    plugin.answer(token="old", expires_at=clock.now() + timedelta(minutes=10))
    authenticator.get()
    plugin.answer(token="new", certificate="bad", key="bad", expires_at=clock.now() + timedelta(days=9))
    clock.advance(minutes=11)
    for _ in range(2):
        with pytest.raises(CredentialError):
            authenticator.get()


# --- failure ---


def test_a_failing_plugin_is_not_run_in_a_hot_loop(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    """E22."""
    plugin.exit(1)
    with pytest.raises(PluginFailed):
        authenticator.get()
    for _ in range(20):
        with pytest.raises(BackingOff, match=r"not retried for 1\.0 s, after 1 failure in a row") as caught:
            authenticator.get()
    assert caught.value.retry_after == 1.0
    assert isinstance(caught.value.__cause__, PluginFailed)
    assert "exit code 1" in str(caught.value)
    assert plugin.runs == 1
    clock.advance(1)
    with pytest.raises(PluginFailed):
        authenticator.get()
    assert plugin.runs == 2


def test_20_callers_of_a_failing_plugin_share_one_run_and_each_has_an_error_of_its_own(
    authenticator: Authenticator, plugin: PluginScript, gate: Gate
) -> None:
    """E20, E22."""
    plugin.exit(1)
    waiting = [authenticator.current() for _ in range(20)]
    gate.open()
    errors = []
    for found in waiting:
        assert isinstance(found, Future)
        with pytest.raises(PluginFailed) as caught:
            wait(found)
        errors.append(caught.value)
    assert len({id(error) for error in errors}) == 20
    assert plugin.runs == 1


def test_a_plugin_that_recovers_is_used_again(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    """E23."""
    plugin.exit(1)
    with pytest.raises(PluginFailed):
        authenticator.get()
    plugin.exit(0)
    clock.advance(1)
    assert token(authenticator.get()) == "token-1"


def test_what_had_expired_when_it_came_is_used_once_and_the_error_after_it_says_so(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    """E22."""
    plugin.answer(token="stale", expires_at=clock.now() - timedelta(seconds=93))
    assert token(authenticator.get()) == "stale"
    with pytest.raises(BackingOff, match="had expired 93 s before") as caught:
        authenticator.get()
    assert "clock" in (caught.value.hint or "")
    assert plugin.runs == 1
    clock.advance(1)
    authenticator.get()
    assert plugin.runs == 2


def test_an_error_that_nobody_foresaw_wakes_the_callers_too(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(authenticator.plugin, "config")
    for _ in range(2):
        with pytest.raises(AttributeError):
            authenticator.get()


def test_metrics_that_fail_wake_the_callers_too(authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(authenticator._metrics, "expires", fail)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            authenticator.get()


@contextmanager
def no_thread_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        yield


def test_without_a_thread_the_request_fails_and_the_next_one_runs_the_plugin_at_once(
    authenticator: Authenticator, plugin: PluginScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    with no_thread_left(monkeypatch):
        for _ in range(3):
            with pytest.raises(CredentialError) as failure:
                authenticator.get()
            assert failure.value.code == "thread-limit-reached"
    assert token(authenticator.get()) == "token-1"
    assert plugin.runs == 1


def test_without_a_thread_a_rejected_or_nearly_spent_credential_goes_on_serving(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.answer(token="token-1", expires_at=clock.now() + timedelta(minutes=10))
    old = authenticator.get()
    with no_thread_left(monkeypatch):
        assert replaced(authenticator, old) is None
        clock.advance(minutes=9, seconds=45)
        assert authenticator.get() is old
    plugin.answer(token="token-2")
    assert token(replaced(authenticator, old)) == "token-2"


# --- 401 ---


def test_a_rejected_credential_is_replaced_by_one_run(authenticator: Authenticator, plugin: PluginScript) -> None:
    """E51, F13."""
    old = authenticator.get()
    plugin.answer(token="token-2")
    assert token(replaced(authenticator, old)) == "token-2"
    assert token(authenticator.get()) == "token-2"
    assert plugin.runs == 2


def test_a_wave_of_rejections_runs_the_plugin_once(
    authenticator: Authenticator, plugin: PluginScript, gate: Gate
) -> None:
    first = authenticator.current()
    gate.open()
    old = wait(first) if isinstance(first, Future) else first
    waiting = [authenticator.replacement(old, REJECTION) for _ in range(20)]
    gate.open()
    found = {id(wait(one)) if isinstance(one, Future) else id(one) for one in waiting}
    assert len(found) == 1
    late = authenticator.replacement(old, REJECTION)
    assert id(late) in found
    assert plugin.runs == 2


def test_waves_in_turn_run_the_plugin_once_each_as_long_as_the_server_takes_what_it_brings(
    authenticator: Authenticator, plugin: PluginScript
) -> None:
    credential = authenticator.get()
    for _ in range(3):
        authenticator.note_accepted(credential)
        newer = replaced(authenticator, credential)
        assert newer is not None
        credential = newer
    assert plugin.runs == 4


def test_a_server_that_rejects_everything_does_not_make_a_storm(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock
) -> None:
    credential = authenticator.get()
    for _ in range(100):
        newer = replaced(authenticator, credential)
        credential = newer or credential
    assert plugin.runs == 2
    clock.advance(1)
    replaced(authenticator, credential)
    assert plugin.runs == 3


def test_when_the_replacement_fails_the_old_credential_stays(
    authenticator: Authenticator, plugin: PluginScript, caplog: pytest.LogCaptureFixture
) -> None:
    """E52."""
    old = authenticator.get()
    plugin.exit(3)
    with caplog.at_level(logging.WARNING, "ostiary"):
        assert replaced(authenticator, old) is None
    assert authenticator.get() is old
    assert "failed with exit code 3" in caplog.text
    assert "token-1" not in caplog.text


# --- certificates (TestTLSCredentials' rotation, the rotation metric) ---


def test_a_replaced_certificate_is_measured_and_the_same_one_again_is_not(
    authenticator: Authenticator, plugin: PluginScript, clock: FakeClock, metrics: Counting, client_certificate: Issue
) -> None:
    """E56."""
    pairs = [client_certificate("one"), client_certificate("two")]
    for certificate, key in (pairs[0], pairs[0], pairs[1]):
        plugin.answer(certificate=certificate, key=key, expires_at=clock.now() + timedelta(hours=1))
        authenticator.get()
        clock.advance(hours=2)
    assert [event[0] for event in metrics.events].count("rotated") == 1


# --- sharing (TestCacheKey, TestExecPluginGlobalCache) ---


def test_the_same_configuration_twice_is_one_authenticator(connect_to: Callable[..., Connection]) -> None:
    """E20."""
    assert connect_to().source is connect_to().source


@pytest.mark.parametrize(
    "change",
    [
        {"user": {"env": [{"name": "A", "value": "1"}]}},
        {"user": {"args": ["x"]}},
        {"user": {"installHint": "get it"}},
        {"user": {"provideClusterInfo": True}},
        {"user": {"mode": "IfAvailable"}},
        {"cluster": {"extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}]}},
        {"stdin_unavailable": True},
        {"stdin_unavailable": "reading manifests"},
        {"plugin_seconds": 5},
    ],
    ids=str,
)
def test_what_changes_a_run_makes_another_authenticator(
    connect_to: Callable[..., Connection], plugin: PluginScript, change: dict[str, Any]
) -> None:
    plain = connect_to()
    options = {**change, "user": exec_user(plugin.path, **change.get("user", {}))}
    assert connect_to(**options).source is not plain.source


def test_another_cluster_shares_the_authenticator_unless_the_plugin_is_told_of_it(
    connect_to: Callable[..., Connection], plugin: PluginScript
) -> None:
    told = exec_user(plugin.path, provideClusterInfo=True)
    assert connect_to().source is connect_to(server="https://other.test").source
    assert connect_to(user=told).source is not connect_to(user=told, server="https://other.test").source


def test_an_authenticator_that_nobody_holds_is_forgotten(plugin: PluginScript) -> None:
    config = ExecConfig(api_version=V1, command=str(plugin.path), interactive_mode="Never")
    made = []

    def make() -> Authenticator:
        made.append(1)
        return Authenticator(ExecPlugin(config, user="dev"))

    held = shared_authenticator("a key", make)
    assert shared_authenticator("a key", make) is held
    del held
    gc.collect()
    shared_authenticator("a key", make)
    assert len(made) == 2


# --- a process that forks ---


def test_a_forked_child_does_not_wait_for_a_run_that_only_its_parent_has(
    authenticator: Authenticator, plugin: PluginScript, gate: Gate
) -> None:
    waiting = authenticator.current()
    child = os.fork()
    if child == 0:
        os.environ["GATE_IS_OPEN"] = "yes"
        os._exit(0 if token(authenticator.get()) == "token-1" else 1)
    assert os.waitpid(child, 0)[1] == 0
    gate.open()
    assert isinstance(waiting, Future)
    wait(waiting)
