"""An API plugin, and its encoding in the token store."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

from ostiary.errors import ProviderError
from ostiary_gateway.config.api_plugins import DeclaredApiPlugin
from ostiary_gateway.config.listen import ClientTls
from ostiary_gateway.interfaces.store_capabilities import StoredObject

# The kind of stored objects that hold plugins.
KIND = "api-plugin"


@dataclass(frozen=True, slots=True)
class ApiPlugin:
    """An API plugin.

    `authorities_pem` and `pins` are the trust settings of a plugin registered by API; a declared one has `tls`.
    `created_at` and `version` are None for a plugin declared in the configuration, which is not stored.
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
        """The upstream's name and the group. Unambiguous, because names of upstreams contain no dot."""
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
    """Decode a stored plugin; raises `ProviderError` for one in another format, which must not be guessed."""
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
