"""Sends a Kubernetes ``Status`` as the answer to a request that the gateway answers itself.

Called by the webhooks, the self reviews and the sign-in routes.
"""

from __future__ import annotations

from ostiary.gateway.request.stages import Passage
from ostiary.wire import status


def send_status(passage: Passage, answer: status.Answer, *headers: tuple[bytes, bytes]) -> int:
    """Send *answer*; returns the status that was sent, or 0 if the client is gone."""
    if passage.exchange.gone:
        return 0
    lines = b"Audit-Id: %s\r\nContent-Type: application/json\r\n" % passage.audit_id.encode()
    for header in headers:
        lines += b"%s: %s\r\n" % header
    passage.exchange.respond_lines(answer.code, lines, answer.body)
    return answer.code
