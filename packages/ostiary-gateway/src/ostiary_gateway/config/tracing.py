"""The settings ``tracing``: which requests are traced, and where spans are sent. Absent: no tracing."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated

from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.settings.kinds import Duration, FilePath, Flag, Holds, Integer, OneOf, Ratio, Text
from ostiary_gateway.settings.outgoing import OutgoingTls, parse_origin
from ostiary_gateway.settings.sections import Section


class Parents(Enum):
    """Clients whose ``traceparent`` is continued."""

    TRUSTED_PROXIES = "TrustedProxies"
    ALWAYS = "Always"
    NEVER = "Never"


@dataclass(frozen=True, slots=True)
class Tracing:
    """Tracing with OpenTelemetry, using its defaults where it defines any."""

    endpoint: Annotated[
        str,
        Text(
            "where spans are posted, as OTLP over HTTP: `https://collector.example.com:4318/v1/traces`; https, except"
            " on the loopback",
            pattern="https?://.*",
            mistake="it is not a URL",
        ),
    ]
    tls: Annotated[OutgoingTls, Section("how the collector is trusted, and what is presented to it", OutgoingTls)] = (
        field(default=OutgoingTls())
    )
    headers_file: Annotated[
        Path | None,
        FilePath(
            "headers for the collector, such as an API key: a `Name: value` on each line. Read for every batch",
            holds=Holds.SECRET,
            unset="none",
        ),
    ] = None
    ratio: Annotated[float, Ratio("how many of the traces that begin here are recorded; 0.1 is one in ten")] = 1.0
    parents: Annotated[
        Parents,
        OneOf(
            "whose `traceparent` is continued, with its decision to record: that of `listen.trustedProxies`,"
            " everybody's or nobody's. Any other request begins a trace of its own, with a link to the one that it"
            " names",
            Parents,
        ),
    ] = Parents.TRUSTED_PROXIES
    user_names: Annotated[bool, Flag("whether spans hold the name of the user (`enduser.id`)")] = False
    service_name: Annotated[str, Text("`service.name` of the spans")] = "ostiary-gateway"
    buffer: Annotated[int, Integer("spans that wait at most in each worker; more are dropped and counted")] = 8192
    batch: Annotated[int, Integer("spans that are sent at once")] = 512
    wait: Annotated[timedelta, Duration("spans are sent after this time, however few")] = timedelta(seconds=5)
    timeout: Annotated[timedelta, Duration("for one request to the collector")] = timedelta(seconds=10)

    def check(self, fields: ConfigSection) -> None:
        if importlib.util.find_spec("opentelemetry") is None or importlib.util.find_spec("opentelemetry.proto") is None:
            fields.problem(
                "the package that encodes spans is not installed", None, "pip install 'ostiary-gateway[otel]'"
            )
        if self.batch > self.buffer and fields.is_right("batch", "buffer"):
            fields.problem("a batch cannot be larger than the buffer", "batch")
        self._check_endpoint(fields)
        self._check_headers(fields)

    def _check_endpoint(self, fields: ConfigSection) -> None:
        scheme, _, rest = self.endpoint.partition("://")
        try:
            url = parse_origin(f"{scheme}://{re.split('[/?]', rest)[0]}")
        except ValueError:
            if fields.is_right("endpoint"):
                fields.problem("it is not a URL", "endpoint")
            return
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("spans would cross the network in plain text", "endpoint", "use https")

    def _check_headers(self, fields: ConfigSection) -> None:
        if self.headers_file is None or not fields.is_right("headersFile"):
            return
        # Imported here: tracing modules are loaded only if tracing is configured.
        from ostiary_gateway.observability.otlp_headers import read_headers

        try:
            read_headers(self.headers_file)
        except OSError as error:
            fields.problem(f"it cannot be read: {error.strerror}", "headersFile")
        except ValueError as error:
            fields.problem(str(error), "headersFile", "write each line as in X-Api-Key: 123")
