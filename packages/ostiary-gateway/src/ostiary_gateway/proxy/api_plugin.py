"""An API plugin, and its form in the token store. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from ostiary.errors import ProviderError
from ostiary_gateway.config.api_plugins import DeclaredApiPlugin
from ostiary_gateway.config.listen import ClientTls
from ostiary_gateway.interfaces.store_capabilities import StoredObject

# The kind of the objects that hold plugins.
KIND = "api-plugin"


@dataclass(frozen=True, slots=True)
class ApiPlugin:
    """`authorities_pem` and `pins` are how it is trusted, if it was registered by API; else `tls` says so.

    `created_at` and `version` are None for one that the configuration declares: it is not in the store.
    """

    upstream: str
    group: str
    versions: tuple[str, ...]
    server: str
    health: str | None = None
    authorities_pem: str = ""
    pins: frozenset[str] = frozenset()
    server_name: str = ""
    tls: ClientTls | None = None
    created_at: datetime | None = None
    created_by: str = ""
    version: int | None = None

    @property
    def name(self) -> str:
        """No upstream has a dot in its name, so this is the upstream's name and the group, and nothing else."""
        return f"{self.upstream}.{self.group}"

    @property
    def is_declared(self) -> bool:
        return self.version is None

    def encode(self) -> bytes:
        assert self.created_at is not None
        fields = {
            "versions": list(self.versions),
            "server": self.server,
            "health": self.health,
            "ca": self.authorities_pem,
            "pins": sorted(self.pins),
            "serverName": self.server_name,
            "createdAt": self.created_at.astimezone(UTC).isoformat(),
            "createdBy": self.created_by,
        }
        return json.dumps(fields, separators=(",", ":")).encode()


def declared_plugin(declared: DeclaredApiPlugin) -> ApiPlugin:
    return ApiPlugin(
        declared.upstream, declared.group, declared.versions, declared.server, declared.health, tls=declared.tls
    )


def decode_plugin(stored: StoredObject) -> ApiPlugin:
    """Raises `ProviderError` for an object that we did not write: what it says must not be guessed."""
    try:
        fields = json.loads(stored.data)
        upstream, _, group = stored.name.partition(".")
        return ApiPlugin(
            upstream,
            group,
            tuple(map(str, fields["versions"])),
            str(fields["server"]),
            None if fields["health"] is None else str(fields["health"]),
            str(fields["ca"]),
            frozenset(map(str, fields["pins"])),
            str(fields["serverName"]),
            created_at=datetime.fromisoformat(fields["createdAt"]),
            created_by=str(fields["createdBy"]),
            version=stored.version,
        )
    except (ValueError, KeyError, TypeError):
        raise ProviderError(
            "the token store holds an API plugin that cannot be read",
            cause=f'the object "{stored.name}" has another form',
            code="token-store-unavailable",
        ) from None
