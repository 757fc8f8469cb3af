"""What a renewal brought, for a moment, so that any replica can answer the same renewal again.

A client whose answer was lost, because its replica was killed or the connection broke, asks again with the token that
it has, and the load balancer sends it to another replica. That token is spent; without this the session would end.
Called by `sessions.calls`. The pair is sealed with the spent token, which nobody but the client has.
"""

from __future__ import annotations

import json
from datetime import datetime

from ostiary.core.abilities import ability
from ostiary.core.secrets.sealing import derived_key, seal, unseal
from ostiary.core.tokens import REUSE_LEEWAY, Issued, Tokens
from ostiary.interfaces.store_abilities.replicas import NoteStore
from ostiary.model import Secret

TOPIC = "renewed sessions"
_KIND = b"renewed session"


class RenewedPairs:
    """Keeps nothing if the store keeps no notes for replicas."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._notes = ability(tokens.store, NoteStore)

    async def keep(self, spent: str, pair: Issued) -> None:
        """Called before *spent* is spent: if the replica dies right after that, the pair is not lost with it."""
        if self._notes is None:
            return
        value = {
            "token": pair.token.reveal(),
            "renewal": pair.renewal.reveal(),
            "expires_at": pair.expires_at.isoformat(),
        }
        sealed = seal(json.dumps(value).encode(), _KIND, spent)
        await self._notes.put_notes(TOPIC, {_key(spent): sealed}, seconds=REUSE_LEEWAY.total_seconds())

    async def find(self, spent: str) -> Issued | None:
        """The pair that *spent* was spent for a moment ago, if it is good."""
        note = None if self._notes is None else await self._notes.find_note(TOPIC, _key(spent))
        plain = None if note is None else unseal(note.data, _KIND, spent)
        if plain is None:
            return None
        value: dict[str, str] = json.loads(plain)
        # Of two replicas that renewed at the same moment one has succeeded, and this may be the other's.
        entry = await self._tokens.find(value["token"])
        if entry is None:
            return None
        expires_at = datetime.fromisoformat(value["expires_at"])
        return Issued(entry.session, Secret(value["token"]), expires_at, Secret(value["renewal"]))


def _key(spent: str) -> str:
    return derived_key(b"find", _KIND, spent).hex()
