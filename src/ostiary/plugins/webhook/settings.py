"""The settings of the audit provider ``webhook``. The defaults are kube-apiserver's."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.net import is_loopback
from ostiary.core.settings.kinds import Duration, FilePath, Holds, Integer, Rate, Text
from ostiary.core.settings.outgoing import OutgoingTls, parse_origin
from ostiary.core.settings.sections import Section


@dataclass(frozen=True, slots=True)
class WebhookAuditSettings:
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

    def check(self, fields: Fields) -> None:
        scheme, _, rest = self.url.partition("://")
        try:
            url = parse_origin(f"{scheme}://{re.split('[/?]', rest)[0]}")
        except ValueError:
            if fields.is_right("url"):
                fields.problem("it is not a URL", "url")
            return
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("events would cross the network in plain text", "url", "use https")
