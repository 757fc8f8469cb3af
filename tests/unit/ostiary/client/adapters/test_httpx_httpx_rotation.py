"""Which transport of httpx a request is sent on, and when an old one is closed: without a lock on the usual way."""

from __future__ import annotations

import random
import ssl
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import httpx
import httpx2
import pytest

from ostiary.client.adapters.httpx import TransportRotation, _classes_for
from ostiary.core.tls import SealedContext


class Connection:
    def __init__(self, *, idle: bool) -> None:
        self.idle = idle

    def is_idle(self) -> bool:
        return self.idle


class Pool:
    def __init__(self) -> None:
        self.connections: list[Connection] = []


class Transport:
    """Stands for a transport of the library, with the place where that keeps its connections."""

    def __init__(self) -> None:
        self._pool = Pool()


class Contexts:
    """The TLS context in force."""

    def __init__(self) -> None:
        self.current = self.another()

    def __call__(self) -> SealedContext | None:
        return self.current

    def another(self) -> SealedContext:
        self.current = SealedContext(ssl.PROTOCOL_TLS_CLIENT)
        return self.current


@pytest.fixture
def contexts() -> Contexts:
    return Contexts()


@pytest.fixture
def rotation(contexts: Contexts) -> TransportRotation[Transport]:
    return TransportRotation(contexts, lambda _: Transport())


def test_requests_share_a_transport_until_the_context_is_another(
    rotation: TransportRotation[Transport], contexts: Contexts
) -> None:
    first, closable = rotation.begin("a")
    assert (rotation.begin("b")[0], closable) == (first, [])
    first.transport._pool.connections = [Connection(idle=True)]
    contexts.another()
    second, closable = rotation.begin("c")
    assert second is not first
    assert (first.is_retired, second.is_retired) == (True, False)
    # Two requests are under way on it: either may be given a connection that looks idle now.
    assert closable == []


def test_an_unused_transport_is_closed_at_the_next_request(
    rotation: TransportRotation[Transport], contexts: Contexts
) -> None:
    first, _ = rotation.begin("a")
    del first.under_way["a"]
    contexts.another()
    assert rotation.begin("b")[1] == [first.transport]
    assert rotation.closable() == []


def test_idle_connections_are_closed_while_an_answer_is_read_and_the_rest_after_it(
    rotation: TransportRotation[Transport], contexts: Contexts
) -> None:
    first, _ = rotation.begin("watch")
    idle, busy = Connection(idle=True), Connection(idle=False)
    first.transport._pool.connections = [idle, busy]
    first.under_way["watch"] = True
    contexts.another()
    closable: Sequence[object] = rotation.begin("b")[1]
    assert closable == [idle]
    del first.under_way["watch"]
    assert rotation.closable() == [first.transport]
    assert rotation.closable() == []


def test_a_request_that_meets_a_rotation_is_sent_on_the_new_transport(
    rotation: TransportRotation[Transport], contexts: Contexts
) -> None:
    """Between the comparison and the note that it is under way, another thread rotates."""
    first, _ = rotation.begin("a")
    del first.under_way["a"]

    class Rotating(dict[object, bool]):
        def __setitem__(self, key: object, value: bool) -> None:
            contexts.another()
            other, closable = rotation.begin("of another thread")
            assert (other is not first, closable) == (True, [first.transport])
            super().__setitem__(key, value)

    first.under_way = Rotating()
    entry, _ = rotation.begin("late")
    assert entry is not first
    assert not first.under_way


def test_closing_returns_all_transports_once(rotation: TransportRotation[Transport], contexts: Contexts) -> None:
    first, _ = rotation.begin("a")
    contexts.another()
    second, _ = rotation.begin("b")
    assert rotation.close() == [first.transport, second.transport]
    assert rotation.close() == []


def test_threads_never_use_a_transport_that_was_closed_and_each_old_one_is_closed_once(contexts: Contexts) -> None:
    made: list[Transport] = []
    closed: list[Transport] = []
    lock = threading.Lock()

    def make(_: SealedContext | None) -> Transport:
        made.append(Transport())
        return made[-1]

    rotation = TransportRotation(contexts, make)

    def close(closable: Iterable[Transport]) -> None:
        with lock:
            closed.extend(closable)

    def work(seed: int) -> None:
        choices = random.Random(seed)
        for _ in range(400):
            if choices.random() < 0.05:
                contexts.another()
            exchange = object()
            entry, closable = rotation.begin(exchange)
            close(closable)
            assert entry.transport not in closed
            entry.under_way[exchange] = True
            assert entry.transport not in closed
            del entry.under_way[exchange]
            if entry.is_retired:
                close(rotation.closable())

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, seed) for seed in range(6)]:
            future.result()
    close(rotation.close())
    assert len(made) > 5
    assert sorted(map(id, closed)) == sorted(map(id, made))


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_the_headers_of_a_signed_request_are_the_librarys_own_for_whoever_asks(library: ModuleType) -> None:
    kind = vars(_classes_for(library)[0])["headers"]
    headers = object.__new__(kind)
    headers.raw = [(b"Host", b"x"), (b"Authorization", b"Bearer canary-3c"), (b"A", b"1"), (b"a", b"2")]
    assert headers["authorization"] == "Bearer canary-3c"
    assert headers.get_list("a") == ["1", "2"]
    assert "canary" not in repr(headers)
    assert headers == library.Headers(headers.raw)
    with pytest.raises(AttributeError):
        _ = headers.no_such_thing
