"""The platform's proof for a token of the gateway: RFC 8693, ``POST /auth/token``.

`exchange_proof` is what programs call that keep a token fresh; the commands call `credential`, which also caches. The
token is an access token alone: when it expires, the platform's proof is exchanged again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ostiary.cli.signin.gateway import GatewayClient
from ostiary.cli.signin.platforms.find import find_proof
from ostiary.cli.signin.platforms.proof import PlatformChoice
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.model import Secret


@dataclass(frozen=True, slots=True)
class WorkloadToken:
    """A token of the gateway, until `expires_at` by the clock of this machine; and whose proof it was given for."""

    token: Secret
    expires_at: datetime
    platform: str
    subject: str
    where: str


def exchange_proof(
    choice: PlatformChoice, *, authorities_pem: str | None = None, clock: Clock = SYSTEM_CLOCK
) -> WorkloadToken:
    """Find this job's or pod's proof, and exchange it at the gateway of *choice*. Nothing is cached.

    Raises `CredentialError` if there is no proof, `LoginRefused` if the gateway says no, and `ProviderError` if the
    platform or the gateway could not be asked.
    """
    proof = find_proof(choice, clock=clock)
    gateway = GatewayClient(choice.server, authorities_pem=authorities_pem, clock=clock)
    granted = gateway.exchange(proof.token, scope=choice.wanted_scope)
    return WorkloadToken(granted.token, granted.expires_at, proof.platform, proof.subject, proof.where)
