"""Grants of a user to a client, stored until the client fetches them: a session of its own, or a step-up."""

from __future__ import annotations

from datetime import datetime

from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login.challenges import Ticket
from ostiary_gateway.login.identity_service import SignedIn
from ostiary_gateway.login.login_transactions import pairs, user_from_json, user_json
from ostiary_gateway.login.records import Value
from ostiary_gateway.login.session_lifetimes import SessionLifetimes
from ostiary_gateway.login.step_up import StepUps
from ostiary_gateway.sessions import Attested, Issued, Tokens


class Grants:
    """Create and redeem the grants of users to clients."""

    def __init__(self, tokens: Tokens, lengths: SessionLifetimes, step_ups: StepUps) -> None:
        self._tokens = tokens
        self._lengths = lengths
        self._step_ups = step_ups

    async def make(self, signed: SignedIn, *, client: str, at: datetime, step_up: str = "") -> dict[str, object]:
        """Return a grant of *signed*. With the ticket *step_up* it applies to that session only and starts none."""
        attested = signed.attested
        granted = {"user": user_json(attested.user), "sources": attested.sources, "provider": signed.provider}
        if step_up:
            await self._step_ups.check(step_up, attested.user, signed.provider)
            return {**granted, "step_up": step_up}
        secret = {} if attested.kept is None else {"kept": attested.kept.reveal()}
        sequence = await self._tokens.sequence() if signed.sequence is None else signed.sequence
        began = {"client": client, "at": at.isoformat(), "sequence": sequence}
        ends = {} if attested.until is None else {"until": attested.until.isoformat()}
        return {**granted, **secret, **began, **ends, "origins": attested.origins}

    async def ticket(self, step_up: str) -> Ticket | None:
        """Return what the user reads before they grant a step-up; None if it has expired."""
        return await self._step_ups.tickets.find(step_up)

    async def redeem(self, grant: Value) -> Issued | Session | None:
        """Return the tokens, or the session that was stepped up; None if the grant has been revoked since."""
        secret = Secret(grant["kept"]) if "kept" in grant else None
        user, sources = user_from_json(grant["user"]), pairs(grant["sources"])
        attested = Attested(user, sources, secret, tuple(grant.get("origins", ())))
        try:
            if "step_up" in grant:
                return await self._step_ups.apply(grant["step_up"], attested.user, grant["provider"])
            return await self._tokens.issue(
                attested.user,
                provider=grant["provider"],
                sources=attested.sources,
                client=grant["client"],
                at=datetime.fromisoformat(grant["at"]),
                sequence=grant["sequence"],
                origins=attested.origins,
                kept=secret,
                session_lifetime=self._lengths.of(grant["provider"], kept=secret is not None),
                until=datetime.fromisoformat(grant["until"]) if "until" in grant else None,
            )
        except LoginRefused:
            return None
