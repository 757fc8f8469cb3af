"""Logout at the IdP after a user signed out on our page (RP-initiated logout).

The gateway's session has ended before. A failure of the IdP is recorded, and the user sees the default page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import LoginRequest, PostedForm, Redirect, SignOut, SignsOutElsewhere
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.provider_contract import checked_url
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.sessions import unseal_hint


class SignOuts:
    """Redirect users to the logout page of their IdP after they signed out here."""

    def __init__(
        self,
        identity: Mapping[str, Identity],
        *,
        events: LoginEvents,
        return_url: Callable[[str], str],
        provider_seconds: float,
    ) -> None:
        self._identity = identity
        self._events = events
        self._return_url = return_url
        self._seconds = provider_seconds

    async def answer(
        self, visitor: Visitor, request: LoginRequest, usual: LoginAnswer, headers: Iterable[tuple[str, str]]
    ) -> LoginAnswer:
        """Return the page that leads to the IdP, or *usual* if the user has nothing to do there."""
        session = visitor.session
        provider = self._identity.get(session.provider)
        signing_out = None if provider is None else ability(provider.instance, SignsOutElsewhere)
        if signing_out is None:
            return usual
        try:
            signed_out = SignOut(unseal_hint(session, visitor.secret), self._return_url(session.provider))
            async with asyncio.timeout(self._seconds):
                target = await signing_out.sign_out(signed_out)
            if isinstance(target, Redirect):
                # The user submitted one of our forms, and browsers do not let a form end on another site.
                return views.leaving(checked_url(target.url, session.provider), headers)
            if isinstance(target, PostedForm):
                return views.posted_form(checked_url(target.url, session.provider), target.fields, headers)
        except Exception as error:
            return self._events.record_failure(error, request, session.provider, instead=usual)
        return usual
