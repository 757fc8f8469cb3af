"""A key that a client opens: the terminal where its PIN is typed."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.device_keys.softhsm import SoftToken
from tests.support.terminal import AtTerminal

PROGRAM = """
import sys, threading
from ostiary.client.exec.device_keys import open_device_key
from ostiary.client.exec.policy import AllowAll
def ask():
    open_device_key(sys.argv[1], policy=AllowAll(), may_ask=True)
try:
    if sys.argv[2] == "here":
        ask()
    else:
        threading.Thread(target=ask, daemon=True).start()
        threading.Event().wait()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.needs("softhsm2-util", "pkcs11-tool")
@pytest.mark.parametrize("thread", ["here", "elsewhere"])
def test_the_terminal_echoes_again_after_a_ctrl_c_at_the_pin(soft_token: SoftToken, thread: str) -> None:
    command = [sys.executable, "-c", PROGRAM, soft_token.address("ec"), thread]
    person = AtTerminal(command, {**os.environ, **soft_token.environ})
    person.read_until("PIN of card: ")
    assert not person.echoes()
    person.type("\x03")
    person.process.wait(60)
    assert person.echoes()
    assert person.end()[1] == "interrupted\n"
