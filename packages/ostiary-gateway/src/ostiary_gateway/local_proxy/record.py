"""The stored contexts of ``ostiary connect``: the original context, the port and the key.

One file each, in the folder of the user's sessions. The command writes them; the proxy reads them, so that any client
can start it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ostiary.cli.cached_token import file_name
from ostiary.cli.login import sessions as files
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary_gateway.local_proxy.certificate import LoopbackCertificate

DEFAULT_IDLE_SECONDS = 15 * 60.0
_END = ".json"


@dataclass(frozen=True, slots=True)
class ConnectRecord:
    """A stored context.

    `name` is the context that clients use; `context` and `kubeconfig` (paths, as in $KUBECONFIG) are the original.
    """

    name: str
    context: str
    kubeconfig: str
    port: int
    certificate: LoopbackCertificate
    idle_seconds: float = DEFAULT_IDLE_SECONDS

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def server(self) -> str:
        return f"https://{self.host}"


def path_of(name: str) -> str:
    stem = file_name(name, "connect")
    if stem is None:
        raise ConfigurationError("the name of the context is too long", hint="choose a shorter one with --name")
    return os.path.join(files.sessions_folder(), "connect", stem + _END)


def save(record: ConnectRecord) -> None:
    certificate = record.certificate
    content = {
        "name": record.name,
        "context": record.context,
        "kubeconfig": record.kubeconfig,
        "port": record.port,
        "idle_seconds": record.idle_seconds,
        "certificate": {
            "authority_pem": certificate.authority_pem,
            "certificate_pem": certificate.certificate_pem,
            "key_pem": certificate.key_pem.reveal(),
            "expires_at": certificate.expires_at,
        },
    }
    files.write(path_of(record.name), json.dumps(content).encode())


def load(name: str) -> ConnectRecord:
    """Load a record. Raises `ConfigurationError` if it does not exist or cannot be used."""
    path = path_of(name)
    content = files.read(path)
    if content is None:
        raise ConfigurationError(
            f"context {name!r} is unknown to ostiary connect",
            cause="it was removed, or made by another user or on another machine",
            where=path,
            hint="make it again: ostiary connect CONTEXT",
            code="connect-context-unknown",
        )
    try:
        fields = json.loads(content)
        certificate = fields.pop("certificate")
        key = Secret(certificate.pop("key_pem"))
        return ConnectRecord(**fields, certificate=LoopbackCertificate(**certificate, key_pem=key))
    except (ValueError, TypeError, KeyError, AttributeError):
        # Do not quote the contents: they include the key.
        cause = "the file is incomplete, or of another version of ostiary"
    raise ConfigurationError(
        f"context {name!r} cannot be used",
        cause=cause,
        where=path,
        hint="remove the file, then make it again: ostiary connect CONTEXT",
        code="connect-context-unknown",
    )


def load_if_known(name: str) -> ConnectRecord | None:
    return load(name) if os.path.lexists(path_of(name)) else None


def all_records() -> Iterator[ConnectRecord]:
    """Yield the readable records, by name."""
    folder = os.path.join(files.sessions_folder(), "connect")
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in sorted(os.listdir(folder)):
            if not entry.endswith(_END):
                continue
            with suppress(ConfigurationError, ValueError, TypeError, KeyError):
                content = files.read(os.path.join(folder, entry))
                yield load(json.loads(content or b"{}")["name"])


def remove(name: str) -> None:
    files.remove(path_of(name))
