"""Finds the request of a head that came whole in one read, without a parser where something of it came before.

Asked by `server.connection`. From what costs least to what costs most:

    the very head came before                                         `KnownHeads`
    it came before but for its trace ids, which are cut out of it     `http1.server.plain_head.cut_traces`
    its header lines came before, with another request line           `KnownHeaderBlocks`
    it is of the plainest form                                        `http1.server.plain_head.PlainHeads`
    else                                                              nothing: httptools reads it

What is known was wanted by the handler of an earlier request, who has put what follows from it there
(`RequestHead.known`, `HeaderBlock.known`), and believes nobody else's. Bounded in bytes, in all and for each owner.
"""

from __future__ import annotations

from hashlib import sha256

from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.gateway.http1.request_head import HeaderBlock, KnownHeads, RequestHead, ServerLimits
from ostiary.gateway.http1.server.plain_head import PlainHeads, cut_traces, read_line

BLOCK_BYTES = 8 * 1024 * 1024
BLOCK_BYTES_PER_OWNER = 1024 * 1024
LONGEST_BLOCK = 4096
_FIXED_BYTES = 1500


class KnownHeaderBlocks:
    """The header lines of heads by the SHA-256 of their bytes, so that no token is kept for them."""

    __slots__ = ("_blocks", "find")

    def __init__(self) -> None:
        self._blocks: BoundedByOwner[bytes, HeaderBlock] = BoundedByOwner(BLOCK_BYTES, BLOCK_BYTES_PER_OWNER)
        self.find = self._blocks.get

    def keep(self, block: HeaderBlock, length: int) -> None:
        if length <= LONGEST_BLOCK:
            self._blocks.keep(block.digest, block, owner=block.known_owner, size=_FIXED_BYTES + 2 * length)

    def clear(self) -> None:
        self._blocks.clear()

    def __len__(self) -> int:
        return len(self._blocks)


class WholeHeads:
    """Those of one listener."""

    __slots__ = ("_expects_traces", "_plain", "blocks", "find", "known")

    def __init__(self) -> None:
        # Whether the latest new head had trace ids: programs that send them do so with each request.
        self._expects_traces = False
        self.known = KnownHeads()
        self.blocks = KnownHeaderBlocks()
        self._plain = PlainHeads()
        # Bound once: it is asked for every request.
        self.find = self.known.find

    def read_new(self, head: bytes, digest: bytes, limits: ServerLimits) -> tuple[RequestHead, bytes] | None:
        """The request of *head*, which did not come before, and the lines that are its own; None if it is not plain.

        *digest* is the SHA-256 of *head*.
        """
        if len(head) > limits.head_bytes:
            return None
        if not self._expects_traces:
            # Lines that are known have no trace ids among them, so there is nothing to be cut out.
            line, _, headers = head.partition(b"\r\n")
            block = self.blocks.find(sha256(headers).digest())
            if block is not None:
                request = _with_another_line(block, line, head, digest, 0, limits)
                return None if request is None else (request, b"")
        core, traces = cut_traces(head)
        self._expects_traces = bool(traces)
        lines = b""
        if traces:
            lines = b"\r\n".join((*traces, b""))
            digest = sha256(core).digest()
            request = self.find(digest)
            if request is not None and request.takes_traces:
                return (request, lines) if request.header_count + len(traces) <= limits.headers else None
        line, _, headers = core.partition(b"\r\n")
        block_digest = sha256(headers).digest()
        block = self.blocks.find(block_digest)
        if block is not None:
            request = _with_another_line(block, line, head, digest, len(traces), limits)
            return None if request is None else (request, lines)
        request = self._plain.read(head, limits)
        if request is None:
            return None
        request.digest, request.traces = digest, lines
        request.block = block = HeaderBlock(request, block_digest, len(traces))
        request.header_count = block.header_count
        return request, b""

    def keep(self, head: bytes, request: RequestHead) -> None:
        """Keep what the handler of a new *request* wants to see again."""
        block = request.block
        # One whose trace ids are still among its lines is no other request's.
        if request.known is not None and not request.traces:
            self.known.keep(head, request)
        if block is not None and block.is_new and block.known is not None and not request.traces:
            block.is_new = False
            self.blocks.keep(block, len(head))

    def clear(self) -> None:
        self.known.clear()
        self.blocks.clear()


def _with_another_line(
    block: HeaderBlock, line: bytes, head: bytes, digest: bytes, traces: int, limits: ServerLimits
) -> RequestHead | None:
    """The request of *head*: of *line*, the lines of *block*, and *traces* more; None if it is not plain."""
    words = read_line(line)
    if words is None or block.header_count + traces > limits.headers:
        return None
    request = block.request(*words)
    request.digest, request.raw = digest, head
    return request
