"""Whose function opens a websocket of the official client, and when."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import websocket
from kubernetes.stream import ws_client

from ostiary.client.adapters.kubernetes import Dialling


class Socket(websocket.WebSocket):
    def __init__(self, by: str) -> None:
        super().__init__()
        self.by = by


def dial_ours(url: str) -> Socket:
    return Socket("ours")


def opened_by() -> str:
    """Who opens a websocket at this moment."""
    create: Callable[..., Socket] = ws_client.create_websocket
    return create(object(), "wss://cluster").by


@pytest.fixture
def dialling(monkeypatch: pytest.MonkeyPatch) -> Dialling:
    monkeypatch.setattr(ws_client, "create_websocket", lambda *_: Socket("theirs"))
    return Dialling()


def test_importing_the_adapter_replaces_nothing_in_the_library() -> None:
    code = """
from kubernetes.stream import ws_client
before = ws_client.create_websocket
import ostiary.client.adapters.kubernetes
print(ws_client.create_websocket is before)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "True"


def test_our_call_dials_and_afterwards_the_library_is_as_it_was(dialling: Dialling) -> None:
    before = ws_client.create_websocket
    with dialling.through(dial_ours):
        assert opened_by() == "ours"
    assert ws_client.create_websocket is before
    assert opened_by() == "theirs"


def test_a_call_within_a_call_leaves_the_outer_one_dialling(dialling: Dialling) -> None:
    before = ws_client.create_websocket
    with dialling.through(dial_ours):
        with dialling.through(lambda url: Socket("inner")):
            assert opened_by() == "inner"
        assert opened_by() == "ours"
    assert ws_client.create_websocket is before


def test_the_library_is_as_it_was_after_a_call_that_fails(dialling: Dialling) -> None:
    before = ws_client.create_websocket
    with pytest.raises(OSError, match="no network"), dialling.through(dial_ours):
        raise OSError("no network")
    assert ws_client.create_websocket is before


def test_other_clients_dial_as_ever_while_ours_is_under_way(dialling: Dialling) -> None:
    with dialling.through(dial_ours), ThreadPoolExecutor(1) as thread:
        assert thread.submit(opened_by).result() == "theirs"


def test_a_function_that_somebody_puts_around_ours_meanwhile_keeps_working(dialling: Dialling) -> None:
    with dialling.through(dial_ours):
        ours: Callable[..., Socket] = ws_client.create_websocket
        ws_client.create_websocket = partial(ours)
        assert opened_by() == "ours"
    assert opened_by() == "theirs"
    with dialling.through(dial_ours):
        assert opened_by() == "ours"
    assert opened_by() == "theirs"
    # And when it is taken away again, with ours inside.
    ws_client.create_websocket = ours
    with dialling.through(dial_ours):
        assert opened_by() == "ours"
    assert opened_by() == "theirs"


def test_a_function_that_replaced_ours_for_good_is_replaced_in_turn(dialling: Dialling) -> None:
    before = ws_client.create_websocket
    with dialling.through(dial_ours):
        ws_client.create_websocket = before
    with dialling.through(dial_ours):
        assert opened_by() == "ours"
    assert ws_client.create_websocket is before
