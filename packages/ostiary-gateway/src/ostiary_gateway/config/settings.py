"""The configuration as values. `config.loading` builds them, and the rest of the gateway uses them.

Each setting is declared here or next to what it configures (`limits.settings`, `http1.listen_limits`). `gateway_file`
combines the sections.
"""

from ostiary_gateway.config.audit import Audit
from ostiary_gateway.config.extauth import AgentSettings, Callers, CarriedDecisions, DoorSettings, ProxyKind
from ostiary_gateway.config.gateway_config import (
    AuthorizationSettings,
    DecisionSettings,
    GatewayConfig,
    Log,
    TokenSettings,
    Webhooks,
)
from ostiary_gateway.config.listen import ClientTls, Listen, ServerTls
from ostiary_gateway.config.provider import Authorization, Groups, Identity, OnError, Provider
from ostiary_gateway.config.tracing import Parents, Tracing
from ostiary_gateway.config.upstream import (
    IdentityMode,
    Offered,
    ShadowSettings,
    UpstreamAuth,
    UpstreamConfig,
    UpstreamSettings,
    UpstreamTimeouts,
)
from ostiary_gateway.config.values import Address
from ostiary_gateway.http1.listen_limits import ListenLimits, ListenTimeouts
from ostiary_gateway.settings.outgoing import OutgoingTls

__all__ = [
    "Address",
    "AgentSettings",
    "Audit",
    "Authorization",
    "AuthorizationSettings",
    "Callers",
    "CarriedDecisions",
    "ClientTls",
    "DecisionSettings",
    "DoorSettings",
    "GatewayConfig",
    "Groups",
    "Identity",
    "IdentityMode",
    "Listen",
    "ListenLimits",
    "ListenTimeouts",
    "Log",
    "Offered",
    "OnError",
    "OutgoingTls",
    "Parents",
    "Provider",
    "ProxyKind",
    "ServerTls",
    "ShadowSettings",
    "TokenSettings",
    "Tracing",
    "UpstreamAuth",
    "UpstreamConfig",
    "UpstreamSettings",
    "UpstreamTimeouts",
    "Webhooks",
]
