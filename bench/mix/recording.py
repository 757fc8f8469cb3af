"""What a recording holds: heads without secrets, how long bodies and answers were, and what is new each time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
# In the place of ten digits that differ from request to request.
NEW = "{new}"
# Never kept. The load has hosts, lengths and tokens of its own.
_LEFT_OUT = frozenset(("authorization", "cookie", "content-length", "host", "connection"))
_DIFFERENT: Sequence[tuple[str, str]] = (
    (r"(resourceVersion=)[1-9]\d*", rf"\g<1>{NEW}"),
    # The last part of a name that Kubernetes makes up, and the one of an event.
    (r"(/pods/[a-z0-9-]+-)[a-z0-9]{5}(?=$|[/?])", rf"\g<1>{NEW}"),
    (r"(/events/[a-z0-9.-]+\.)[0-9a-f]{16}(?=$|[/?])", rf"\g<1>{NEW}"),
    (r"(involvedObject\.uid(?:=|%3D))[0-9a-f-]{36}", rf"\g<1>{NEW}"),
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(slots=True)
class Recorded:
    """One request, and how long its answer was on the wire, head included."""

    client: str
    method: str
    target: str
    headers: list[tuple[str, str]]
    # The length of the body. Its bytes are kept only where the gateway itself reads them.
    length: int = 0
    body: str = ""
    answer: int = 0
    status: int = 0

    @property
    def watches(self) -> bool:
        return re.search(r"[?&]watch=(1|true)\b", self.target) is not None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


@dataclass(slots=True)
class Head:
    """The head of a request as it came."""

    line: str
    headers: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def parse(cls, data: bytes) -> Head:
        line, *fields = data.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        return cls(line, [(name, value.strip()) for name, _, value in (each.partition(":") for each in fields)])

    def value(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    def recorded(self, body: bytes) -> Recorded:
        """Without secrets, and with `NEW` where the same program sends something else the next time."""
        method, target, _ = self.line.split(" ")
        for pattern, replacement in _DIFFERENT:
            target = re.sub(pattern, replacement, target)
        headers = [
            (name, _UUID.sub(f"00000000-0000-4000-8000-00{NEW}", value))
            for name, value in self.headers
            if name.lower() not in _LEFT_OUT
        ]
        kept = body.decode("latin-1") if "/selfsubject" in target else ""
        return Recorded(_client(self.value("user-agent")), method, target, headers, len(body), kept)


def _client(agent: str) -> str:
    program = agent.partition("/")[0]
    return program if program in ("kubectl", "kube-controller-manager") else "dashboard"


def write(file: Path, requests: Iterable[Recorded]) -> None:
    lines = [json.dumps(asdict(request), separators=(",", ":")) for request in requests]
    file.write_text("\n".join([*lines, ""]))


def read(file: Path) -> list[Recorded]:
    rows = (json.loads(line) for line in file.read_text().splitlines())
    return [Recorded(**{**row, "headers": [(name, value) for name, value in row["headers"]]}) for row in rows]


def read_all() -> list[Recorded]:
    """All recordings, each program in the order in which it asked."""
    return [request for file in sorted(FOLDER.glob("*.jsonl")) for request in read(file)]
