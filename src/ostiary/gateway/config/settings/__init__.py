"""The gateway's configuration as values: what `gateway.config` reads, and everything else in the gateway is built from.

Each setting is declared here or next to what it configures (`admit.limits`, `http1.listen_limits`); `gateway_file` puts
the sections together.
"""

from ostiary.core.settings.outgoing import OutgoingTls
from ostiary.gateway.config.settings.audit import Audit
from ostiary.gateway.config.settings.callers import Callers
from ostiary.gateway.config.settings.config import (
    AuthorizationSettings,
    DecisionSettings,
    GatewayConfig,
    Log,
    TokenSettings,
    Webhooks,
)
from ostiary.gateway.config.settings.door import AgentSettings, CarriedDecisions, DoorSettings, ProxyKind
from ostiary.gateway.config.settings.listen import ClientTls, Listen, ServerTls
from ostiary.gateway.config.settings.provider import Authorization, Groups, Identity, OnError, Provider
from ostiary.gateway.config.settings.tracing import Parents, Tracing
from ostiary.gateway.config.settings.upstream import (
    IdentityMode,
    Offered,
    ShadowSettings,
    UpstreamAuth,
    UpstreamConfig,
    UpstreamSettings,
    UpstreamTimeouts,
)
from ostiary.gateway.config.values import Address
from ostiary.gateway.http1.listen_limits import ListenLimits, ListenTimeouts

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
