"""Where the agent's token comes from.

the proof        what the platform says of this pod or job (--from), a session of ``ostiary login``, or a token of
                 the gateway in a file
the token        of a service account (--service-account), which the proof may ask for; else what the proof is
                 exchanged for
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ostiary.cli.agent.keeper import HeldToken, Source
from ostiary.cli.gateway.remote import RemoteGateway
from ostiary.cli.signin.platforms.exchange import exchange_proof
from ostiary.cli.signin.platforms.proof import PlatformChoice
from ostiary.cli.signin.sessions import GatewayAccount
from ostiary.cli.signin.turn import Turn
from ostiary.cli.token_file import token_text
from ostiary.core.clock import Clock
from ostiary.core.text import fits_token_header
from ostiary.core.users.account_names import AccountName
from ostiary.errors import ConfigurationError, ProviderError
from ostiary.model import Secret

_UNKNOWN = "the agent's own proof is unknown, expired or revoked: sign in again, or renew the file"
Proof = Callable[[], Secret]


def session_source(account: GatewayAccount, authorities_pem: str | None, clock: Clock) -> Source:
    """The token of the session that ``ostiary login`` keeps here, renewed silently. Nobody is asked."""

    def source() -> HeldToken:
        answer = Turn(account, authorities_pem=authorities_pem, clock=clock).credential()
        assert answer.token is not None
        assert answer.expires_at is not None
        return HeldToken(answer.token, answer.expires_at)

    return source


def platform_source(choice: PlatformChoice, authorities_pem: str | None, clock: Clock) -> Source:
    """What the platform says of this pod or job, exchanged at the gateway."""

    def source() -> HeldToken:
        granted = exchange_proof(choice, authorities_pem=authorities_pem, clock=clock)
        return HeldToken(granted.token, granted.expires_at, granted.subject)

    return source


def file_source(path: str) -> Source:
    """A token of the gateway in a file, read again each time: somebody else may keep it fresh."""

    def source() -> HeldToken:
        token = token_text(path).strip()
        if not fits_token_header(token):
            raise ConfigurationError(
                "the file holds no token",
                cause="it is not one line of visible ASCII",
                where=path,
                code="token-file-unreadable",
            )
        # Nobody has said until when it is good; it is only used at once, to ask for another one.
        return HeldToken(Secret(token), datetime.max.replace(tzinfo=UTC))

    return source


def account_source(
    server: str,
    proof: Proof,
    name: AccountName,
    *,
    seconds: int | None,
    scope: str = "",
    authorities_pem: str | None,
    clock: Clock,
) -> Source:
    """A token of the service account, asked for with the *proof*."""
    spec: dict[str, object] = {} if seconds is None else {"expirationSeconds": seconds}
    if scope:
        spec["scope"] = scope

    def source() -> HeldToken:
        gateway = RemoteGateway(server, proof(), authorities_pem=authorities_pem, unknown_token=_UNKNOWN)
        # Before the request: the token may expire a little sooner for us than for the gateway, and never later.
        asked_at = clock.now()
        answer = gateway.post("namespaces", name.namespace, "serviceaccounts", name.name, "token", body={"spec": spec})
        try:
            created = datetime.fromisoformat(answer["metadata"]["creationTimestamp"])
            status = answer["status"]
            # As long as the gateway says by its own clock, which may differ from ours.
            lifetime = datetime.fromisoformat(status["expirationTimestamp"]) - created
            return HeldToken(Secret(status["token"]), asked_at + max(lifetime, timedelta(0)), str(status["user"]))
        except (KeyError, TypeError, ValueError):
            raise ProviderError(
                "the gateway's answer holds no token", where=server, code="gateway-answer-invalid"
            ) from None

    return source
