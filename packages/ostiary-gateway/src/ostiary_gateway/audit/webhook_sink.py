"""Post audit events to a webhook as an ``EventList``, with the defaults of kube-apiserver.

    audit: {webhook: {url: "https://audit.example.com/events", tokenFile: token}}

The gateway makes the batches. No request waits for the webhook: with `audit.blocking` a request fails when too many
events are buffered. A batch is dropped after several failed attempts.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary.errors import AuditUnavailable
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.audit import Batches
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Duration, FilePath, Holds, Integer, Rate, Text
from ostiary_gateway.settings.outgoing import OutgoingTls, client_context, parse_origin
from ostiary_gateway.settings.sections import Section
from ostiary_gateway.wire.audit import event_list

if TYPE_CHECKING:
    import httpx2


@dataclass(frozen=True, slots=True)
class WebhookAuditSettings:
    """The settings ``audit.webhook``."""

    url: Annotated[
        str,
        Text(
            "where batches of events are posted; https, except on the loopback",
            pattern="https?://.*",
            mistake="it is not a URL",
        ),
    ]
    tls: Annotated[OutgoingTls, Section("how that server is trusted, and what is presented to it", OutgoingTls)] = (
        field(default=OutgoingTls())
    )
    token_file: Annotated[Path | None, FilePath("a token for that server", holds=Holds.SECRET, unset="none")] = None
    buffer: Annotated[int, Integer("events that wait at most")] = 10_000
    batch: Annotated[int, Integer("events that are sent at once")] = 400
    wait: Annotated[timedelta, Duration("events are sent after this time, however few")] = timedelta(seconds=30)
    requests_per_second: Annotated[float, Rate("batches a second, on average")] = 10.0
    burst: Annotated[int, Integer("batches at once")] = 15

    def check(self, fields: ConfigSection) -> None:
        scheme, _, rest = self.url.partition("://")
        try:
            url = parse_origin(f"{scheme}://{re.split('[/?]', rest)[0]}")
        except ValueError:
            if fields.is_right("url"):
                fields.problem("it is not a URL", "url")
            return
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("events would cross the network in plain text", "url", "use https")


REQUESTS_PER_SECOND = 10.0
BURST = 15
ATTEMPTS = 5
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0
_CONTENT = {"Content-Type": "application/json"}


class WebhookAudit:
    """The audit provider ``webhook``. A batch is dropped after *attempts* failures.

    Implements `ostiary_gateway.interfaces.audit.AuditProvider`.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: OutgoingTls | None = None,
        token_file: str | os.PathLike[str] | None = None,
        batches: Batches | None = None,
        requests_per_second: float = REQUESTS_PER_SECOND,
        burst: int = BURST,
        attempts: int = ATTEMPTS,
        clock: Clock = SYSTEM_CLOCK,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.batches = batches or Batches()
        self._url, self._tls, self._token_file = url, tls or OutgoingTls(), token_file
        self._attempts, self._pause = attempts, pause
        self._pace = _Pace(requests_per_second, burst, clock)
        self._context: ssl.SSLContext | bool = True
        self._client: httpx2.AsyncClient | None = None

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        settings = read_settings(WebhookAuditSettings, fields, context.directory)
        return cls(
            settings.url,
            tls=settings.tls,
            token_file=settings.token_file,
            batches=Batches(settings.buffer, settings.batch, settings.wait.total_seconds()),
            requests_per_second=settings.requests_per_second,
            burst=settings.burst,
            clock=context.clock,
        )

    def begin(self, *, blocking: bool) -> None:
        # Fail at startup if a TLS file cannot be used, instead of losing events later.
        self._context = client_context(self._tls) if self._url.startswith("https:") else True

    async def store(self, events: Sequence[str]) -> None:
        why = await self._deliver(event_list([line.rstrip("\n") for line in events]).encode("ascii"))
        if why:
            raise AuditUnavailable("the webhook did not accept audit events", cause=why)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _deliver(self, body: bytes) -> str:
        """Post *body*, with retries. Return why it was not accepted, or an empty string."""
        why, delay = "", FIRST_RETRY_SECONDS
        for attempt in range(self._attempts):
            if attempt:
                await self._pause(delay)
                delay = min(delay * 2, LONGEST_RETRY_SECONDS)
            await self._pause_for_pace()
            why, again = await self._post(body)
            if not again:
                break
        return why

    async def _pause_for_pace(self) -> None:
        while seconds := self._pace.wait():
            await self._pause(seconds)

    async def _post(self, body: bytes) -> tuple[str, bool]:
        """Return why it was not accepted, or an empty string, and whether a retry may help."""
        try:
            headers = _CONTENT | self._authorization()
            response = await self._http_client().post(self._url, content=body, headers=headers)
        except Exception as error:
            # The type only: the text of a transport error may contain the URL, and the URL a password.
            return type(error).__name__, True
        if response.status_code < 300:
            return "", False
        again = response.status_code >= 500 or response.status_code in (408, 429)
        return f"it answered {response.status_code}", again

    def _http_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            # Imported lazily: it is as large as the rest of the gateway.
            import httpx2

            self._client = httpx2.AsyncClient(verify=self._context, trust_env=False)
        return self._client

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        # Read for every batch, because such tokens are rotated on disk.
        return {"Authorization": f"Bearer {Path(self._token_file).read_text(encoding='utf-8').strip()}"}


class _Pace:
    """A token bucket: *burst* requests immediately, then *rate* per second."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._tokens, self._at = float(burst), clock.monotonic()

    def wait(self) -> float:
        """Take a token and return zero, or return the seconds until one is available."""
        now = self._clock.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate
