"""The bundled audit providers keep the contract of an audit provider (S70)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.audit.file_sink import FileAudit
from ostiary_gateway.audit.stdout_sink import StdoutAudit
from ostiary_gateway.audit.webhook_sink import WebhookAudit
from ostiary_gateway.testing.audit import AuditContract, Stored
from tests.support.audit_webhook import Webhook


class TestFileAudit(AuditContract):
    @pytest.fixture
    def provider(self, tmp_path: Path) -> FileAudit:
        return FileAudit(tmp_path / "audit.log")

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        return lambda: (tmp_path / "audit.log").read_text().splitlines(keepends=True)

    @pytest.fixture
    def broken(self) -> FileAudit:
        return FileAudit("/dev/full")


class TestStdoutAudit(AuditContract):
    @pytest.fixture
    def output(self, tmp_path: Path) -> Iterator[int]:
        descriptor = os.open(tmp_path / "output", os.O_CREAT | os.O_RDWR | os.O_APPEND)
        yield descriptor
        os.close(descriptor)

    @pytest.fixture
    def provider(self, output: int) -> StdoutAudit:
        return StdoutAudit(output)

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        return lambda: (tmp_path / "output").read_text().splitlines(keepends=True)

    @pytest.fixture
    def broken(self) -> Iterator[StdoutAudit]:
        descriptor = os.open("/dev/full", os.O_WRONLY)
        yield StdoutAudit(descriptor)
        os.close(descriptor)


class TestWebhookAudit(AuditContract):
    @pytest.fixture
    def webhook(self) -> Iterator[Webhook]:
        with Webhook().running() as webhook:
            yield webhook

    @pytest.fixture
    def provider(self, webhook: Webhook) -> WebhookAudit:
        return WebhookAudit(webhook.url)

    @pytest.fixture
    def stored(self, webhook: Webhook) -> Stored:
        def lines() -> list[str]:
            events: list[Any] = webhook.events
            return [json.dumps(event) for event in events]

        return lines

    @pytest.fixture
    def broken(self) -> WebhookAudit:
        return WebhookAudit("http://127.0.0.1:1/", attempts=1)
