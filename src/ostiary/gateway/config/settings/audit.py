"""The settings ``audit``: which requests are recorded, and where."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.net.loopback import is_loopback
from ostiary.core.settings.kinds import Duration, FilePath, Flag, Holds, Integer, Rate, Text, unreadable
from ostiary.core.settings.sections import OptionalSection, Section
from ostiary.errors import ConfigurationError
from ostiary.gateway.config.settings.listen import ClientTls
from ostiary.gateway.config.values import parse_origin
from ostiary.wire.audit import load_policy


@dataclass(frozen=True, slots=True)
class AuditLog:
    path: Annotated[Path, FilePath("a file to append to; its directory must exist", holds=Holds.WRITTEN)]
    fsync: Annotated[bool, Flag("every write waits for the disk")] = False


@dataclass(frozen=True, slots=True)
class AuditWebhook:
    """The defaults are kube-apiserver's."""

    url: Annotated[
        str,
        Text(
            "where batches of events are posted; https, except on the loopback",
            pattern="https?://.*",
            mistake="it is not a URL",
        ),
    ]
    tls: Annotated[ClientTls, Section("how that server is trusted, and what is presented to it", ClientTls)] = field(
        default=ClientTls()
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


@dataclass(frozen=True, slots=True)
class Audit:
    """`policy` None: every request at level Metadata."""

    policy: Annotated[Path | None, FilePath("an `audit.k8s.io/v1` Policy", unset="every request at level Metadata")] = (
        None
    )
    stdout: Annotated[bool, Flag("events go to standard output")] = False
    log: Annotated[AuditLog | None, OptionalSection("events go to a file", AuditLog)] = None
    webhook: Annotated[AuditWebhook | None, OptionalSection("events go to another server", AuditWebhook)] = None
    blocking: Annotated[
        bool,
        Flag(
            "no request passes whose record cannot be kept; each is recorded when it is received, whatever stages the"
            " policy omits"
        ),
    ] = False

    def check(self, fields: Fields) -> None:
        if self.policy is None or unreadable(self.policy):
            return
        try:
            load_policy(self.policy)
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(f"{error.summary}: {problem}", "policy", problem.hint)
