"""The log: private from its first byte, and without what looks like a secret."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostiary_gateway.local_proxy.log_file import log_path, log_to_file


@pytest.fixture
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    log = logging.getLogger("ostiary.connect")
    own = log.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:], root.level = handlers, level
    log.setLevel(own)


@pytest.mark.usefixtures("own_logging")
def test_it_is_private_and_says_nothing_secret() -> None:
    log_to_file()
    token = "ost_" + "a1B2" * 12
    logging.getLogger("ostiary.connect").warning("it failed with Bearer %s", token, extra={"cause": "no reason"})
    path = Path(log_path())
    text = path.read_text()
    assert "it failed" in text
    assert "cause: no reason" in text
    assert token not in text
    assert path.stat().st_mode & 0o777 == 0o600
