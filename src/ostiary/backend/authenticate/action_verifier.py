"""Verifies the proof of a request that the gateway has allowed and redirected here.

Called by the authenticator. The proof is good for the method and the URL that it names, as often as it is used within
its minute: a download that was cut off goes on with another request. No policy is asked again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from urllib.parse import urlsplit

from ostiary.backend.authenticate.jwt_verifier import JwtVerifier, description_of
from ostiary.backend.config.settings import ActionSettings, TrustedGateway
from ostiary.backend.request import BackendRequest
from ostiary.core.clock import Clock
from ostiary.core.delegation import NOTHING
from ostiary.plugins.common.jwt.tokens import Claims, ParsedToken, TokenRefused
from ostiary.wire.ostiary_dev.action_token import TYPE, extra_of, is_for
from ostiary.wire.ostiary_dev.token_introspection import TokenDescription

log = logging.getLogger("ostiary.backend")

# It lives for a minute or so: clocks that differ by more than this must be set.
SKEW = timedelta(seconds=10)
_USUAL_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class VerifiedAction:
    """Who was allowed to do it. `id` is the ``Audit-Id`` of the request at the gateway."""

    description: TokenDescription
    id: str


class ActionVerifier(JwtVerifier):
    """For the proofs of one gateway. Raises `TransportError` if a file of TLS cannot be used."""

    def __init__(self, settings: ActionSettings, gateway: TrustedGateway, clock: Clock) -> None:
        super().__init__(settings, (settings.origin,), gateway, clock, types=frozenset((TYPE,)), skew=SKEW)
        self._origin = settings.origin.encode()
        url = urlsplit(settings.origin)
        usual = () if url.port is not None else (f"{url.netloc}:{_USUAL_PORTS[url.scheme]}",)
        self._hosts = frozenset(name.encode() for name in (url.netloc, *usual))

    async def verify(self, request: BackendRequest) -> VerifiedAction | None:
        """What the proof of *request* attests; None if it is not to be believed. Raises `ProviderError`."""
        try:
            self._check_request(request)
            assert request.action is not None, "checked by whoever calls"
            claims = await self.claims_of(request.action.decode("latin-1"))
            if not is_for(claims, method=request.method, url=self._origin + request.target):
                raise TokenRefused("it is for another request")
            return _verified(claims)
        except TokenRefused as refused:
            log.info("an action token was refused: %s", refused)
            return None

    def _check_request(self, request: BackendRequest) -> None:
        if request.host.lower() not in self._hosts:
            raise TokenRefused("the Host of the request is not the one of actions.origin")
        if request.upgrade or request.has_body:
            raise TokenRefused("the request has a body, or changes the protocol")

    def check_kind(self, token: ParsedToken) -> None:
        # A JWT need not have a type. This one must: it is what keeps it apart from all others of the issuer.
        kind = token.header.get("typ")
        if not isinstance(kind, str) or kind.lower() != TYPE:
            raise TokenRefused("it is a token of another kind")


def _verified(claims: Claims) -> VerifiedAction:
    description, credential_id = description_of(claims), claims.get("cid")
    if not isinstance(credential_id, str) or not credential_id:
        raise TokenRefused("it lacks what a revocation names")
    try:
        user = replace(description.user, extra=extra_of(claims))
    except ValueError as error:
        raise TokenRefused(str(error)) from None
    # For this request alone: whatever a view asks for besides is beyond it.
    once = replace(description, user=user, credential_id=credential_id, delegation=NOTHING.encode())
    return VerifiedAction(once, description.credential_id)
