"""Revocations for clusters and backends that verify our JWTs themselves.

    POST /webhooks/deny-revoked          a SubjectAccessReview: denied if the credential was revoked, else no opinion
    GET  /webhooks/revoked-credentials   the list of revoked credentials, for API servers and for backends

The review takes effect immediately. The list serves API servers without the webhook, and backends that check tokens
themselves.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from urllib.parse import parse_qs

from ostiary.core.clock import Clock
from ostiary.errors import OstiaryError
from ostiary.model import Decision, UserInfo, Verdict
from ostiary.wire import status
from ostiary.wire.status import Answer
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import PortableStore
from ostiary_gateway.issuer.deny_list import revoked_credentials
from ostiary_gateway.issuer.issuer import JwtIssuer
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.wire.apiserver_config import CREDENTIAL_ID_KEY, ISSUER_KEY
from ostiary_gateway.wire.authorization import SUBJECT, AccessReview, ReviewError, decode_review, encode_status
from ostiary_gateway.wire.revoked_credentials import encode_revoked_credentials

log = logging.getLogger("ostiary.gateway")

# The prefix with which kube-apiserver passes the `jti` of a JWT, and the format of ours.
JTI_PREFIX = "JTI="
_JTI = re.compile(f"{JTI_PREFIX}[0-9a-f]{{64}}")
LONGEST_WAIT_SECONDS = 25.0
# Maximum number of users that one log line names.
MOST_NAMED = 10

NO_OPINION = Decision(Verdict.NO_OPINION)
REVOKED = Decision(Verdict.DENY, "the credential was revoked, or its session has ended")


class RevokedCredentialReviews:
    """Respond to SubjectAccessReviews about users of our issuer: deny or no opinion, never allow."""

    def __init__(self, authenticator: TokenAuthenticator, issuer_url: str, metrics: Metrics) -> None:
        self._authenticator = authenticator
        self._issuer_url = issuer_url
        self._metrics = metrics

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        try:
            review = decode_review(body)
            if review.kind != SUBJECT or review.user is None:
                raise ReviewError(f"kind must be {SUBJECT}")
        except ReviewError as error:
            return status.bad_request(str(error))
        credential = self._credential(review.user)
        if credential is None:
            return self._answer(review, NO_OPINION)
        if not credential:
            return self._answer(review, REVOKED)
        if self._authenticator.recall(credential) is not None:
            return self._answer(review, NO_OPINION)
        return self._look_up(review, credential)

    async def _look_up(self, review: AccessReview, credential: bytes) -> Answer:
        try:
            live = await self._authenticator.find(credential)
        except OstiaryError as error:
            log.error("whether a credential was revoked cannot be looked up", extra={"cause": error.cause})
            return status.internal()
        return self._answer(review, REVOKED if live is None else NO_OPINION)

    def _credential(self, user: UserInfo) -> bytes | None:
        """Return the store's key of the JWT; None for another issuer, empty if our issuer's JWT has an invalid id."""
        extra = dict(user.extra)
        digests = [text.removeprefix(JTI_PREFIX) for text in extra.get(CREDENTIAL_ID_KEY, ()) if _JTI.fullmatch(text)]
        if len(digests) == 1:
            return bytes.fromhex(digests[0])
        return b"" if self._issuer_url in extra.get(ISSUER_KEY, ()) else None

    def _answer(self, review: AccessReview, decision: Decision) -> Answer:
        self._metrics.credential_reviews.inc("denied" if decision is REVOKED else "no_opinion")
        return Answer(200, encode_status(review, decision))


class RevokedCredentialList:
    """The list of revoked credentials, from the log of the token store. *issuer* is None if no JWTs are signed."""

    def __init__(
        self,
        issuer: JwtIssuer | None,
        authenticator: TokenAuthenticator,
        tokens: Tokens,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._issuer = issuer
        self._authenticator = authenticator
        self._tokens = tokens
        self._clock = clock
        self._metrics = metrics
        self._summed_up: frozenset[str | None] = frozenset()

    async def answer(self, query: str) -> Answer:
        """Return the list for the query string *query*.

        ``after=NUMBER`` waits until there is something newer, and ``wait=SECONDS`` limits the wait.
        """
        parameters = parse_qs(query)
        after, wait = (_number(parameters.get(name, [""])[-1]) for name in ("after", "wait"))
        seconds = LONGEST_WAIT_SECONDS if wait is None else min(wait, LONGEST_WAIT_SECONDS)
        try:
            if after is not None:
                await self._authenticator.feed.wait_until_applied(after, seconds)
            return await self._list()
        except OstiaryError as error:
            log.error("the revoked credentials cannot be listed", extra={"cause": error.cause or error.summary})
            return status.failure(503, "ServiceUnavailable", "the revoked credentials cannot be listed")

    async def _list(self) -> Answer:
        store = ability(self._tokens.store, PortableStore)
        assert store is not None, "the configuration was checked"
        stored = await store.export_log()
        listed = revoked_credentials(
            [*stored.revocations, *self._tokens.unsaved],
            issuer="" if self._issuer is None else self._issuer.url,
            audiences=() if self._issuer is None else self._issuer.audiences,
            head=stored.head,
            now=self._clock.now(),
        )
        if listed.issued_until is not None:
            log.warning("too many revocations to list: verifiers refuse all JWTs that were issued before the last one")
        # An entry with a sequence number is a logout sent by an identity provider, not a summary of too many entries.
        summed_up = frozenset(
            each.username for each in listed.subjects if each.issued_until is not None and each.sequence is None
        )
        if summed_up - self._summed_up:
            # Log each user once, not for every revocation of a flood.
            log.warning(
                "users have so many revoked credentials that verifiers refuse all of their older JWTs",
                extra={"users": sorted(str(name) for name in summed_up - self._summed_up)[:MOST_NAMED]},
            )
        self._summed_up = summed_up
        self._metrics.revoked_credentials.set(len(listed))
        return Answer(200, encode_revoked_credentials(listed))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
