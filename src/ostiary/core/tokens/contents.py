"""What a token store holds, counted: sessions, tokens of each kind, revocations.

Called by ``ostiary store check``. Reads the store in pages and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ostiary.core.tokens.moving import read_sessions
from ostiary.interfaces.store_abilities.moving import PortableStore
from ostiary.interfaces.token_store import TokenKind, TokenStore


@dataclass(frozen=True, slots=True)
class ContentCounts:
    """`kept` counts all tokens, those that have expired and are not yet swept included.

    What only a store that can be read as a whole can say is None for any other.
    """

    head: int
    marks: int
    kept: int
    sessions: int | None = None
    sessions_without_tokens: int | None = None
    tokens: dict[TokenKind, int] = field(default_factory=dict)
    forgotten: int | None = None

    @property
    def unswept(self) -> int | None:
        return None if self.sessions is None else max(self.kept - sum(self.tokens.values()), 0)


async def count_contents(store: TokenStore, portable: PortableStore | None) -> ContentCounts:
    """*portable* is the same store, if it can be read as a whole."""
    head, marks, kept = (await store.revocations_after(None)).head, len(await store.marks()), await store.count()
    if portable is None:
        return ContentCounts(head, marks, kept)
    sessions = without = 0
    tokens: Counter[TokenKind] = Counter()
    async for stored in read_sessions(portable):
        sessions += 1
        without += not stored.tokens
        tokens.update(token.kind for token in stored.tokens)
    log = await portable.export_log()
    return ContentCounts(head, marks, kept, sessions, without, dict(tokens), log.forgotten)
