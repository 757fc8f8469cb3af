"""Routes of the identity providers: start of a sign-in, return from the IdP, and the password form.

    /auth, /auth/<name>                                    handle_client    -> user | redirect | challenge
    /auth/<name>, with a bearer token                      token_endpoint, if the provider verifies tokens
    /auth/<name>/start                                     handle_client, for the return target chosen before
    /auth/<name>/provider, /auth/provider                  handle_provider  -> user
    /auth/<name>/logout                                    backchannel_logout, if the provider accepts logouts
    /auth/<name>/groups/provider, /auth/groups/provider    groups_from_provider
    /auth/metadata, /auth/<name>/metadata                  publish_metadata -> a document

`providers` calls the providers, and `outcomes` builds the responses.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlencode

from ostiary.errors import LoginRefused, OstiaryError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest, PublishesMetadata, SignIn
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.backchannel_logout import Logouts
from ostiary_gateway.login.complete_sign_in import CompleteSignIn
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.identity_service import IdentityService, for_people, returns_by_post
from ostiary_gateway.login.login_transactions import (
    ApplicationReturnTo,
    CliReturnTo,
    DeviceReturnTo,
    Flow,
    LoginTransactions,
    PendingCallbacks,
    ReturnTo,
)
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.pages.site import Site, sign_in_kind
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.token_endpoint import TokenExchanger
from ostiary_gateway.login.visit import AddressLimit, Visit, bearer, comes_from, field


class ProviderRoutes:
    """The routes below ``/auth`` that lead to an identity provider and back."""

    def __init__(
        self,
        identity: Mapping[str, Identity],
        site: Site,
        *,
        providers: IdentityService,
        outcomes: CompleteSignIn,
        flows: LoginTransactions,
        parked: PendingCallbacks,
        events: LoginEvents,
        starts: AddressLimit,
        exchange: TokenExchanger,
        logouts: Logouts,
    ) -> None:
        self._identity = identity
        self._people = for_people(identity)
        self._exchange = exchange
        self._logouts = logouts
        self._site = site
        self._providers = providers
        self._outcomes = outcomes
        self._flows = flows
        self._parked = parked
        self._events = events
        self._starts = starts

    async def answer(self, visit: Visit, path: list[str]) -> LoginAnswer:
        """Respond to a request; *path* is what follows ``/auth``."""
        provider, rest = self._find_provider(path)
        if provider is None:
            return answers.error(404, "page not found")
        match rest:
            case []:
                return await self._visit(visit, provider, None)
            case ["start"]:
                return await self._start(visit, provider)
            case ["provider"] if returns_by_post(provider):
                return await self._return_by_post(visit, provider)
            case ["provider"]:
                return await self._return(visit, provider)
            case ["groups", "provider"]:
                return await self._return(visit, provider, with_groups=True)
            case ["logout"] if self._logouts.takes(provider):
                return await self._logouts.answer(visit.request, provider)
            case ["metadata"] if (publishing := ability(provider.instance, PublishesMetadata)) is not None:
                return await self._metadata(visit, provider, publishing)
        return answers.error(404, "page not found")

    def accepts_foreign_form(self, path: list[str]) -> bool:
        """Report whether an IdP may POST a form to this path from its own site.

        A form that returns a browser is only stored until the browser comes back. A logout message is verified by its
        content.
        """
        match path:
            # Only with the provider's name: ``/auth/logout`` is our own page.
            case [name, "logout"]:
                return self._logouts.takes(self._identity.get(name))
        provider, rest = self._find_provider(path)
        return provider is not None and rest == ["provider"] and returns_by_post(provider)

    def _find_provider(self, path: list[str]) -> tuple[Identity | None, list[str]]:
        """Return the provider that *path* names, or the only one, and the rest of the path.

        With several providers a return must name its provider: if two issuers could share a redirect URI, one of them
        could obtain the codes of the other (RFC 9700, section 4.4).
        """
        if path and path[0] in self._identity:
            return self._identity[path[0]], path[1:]
        only = self._people if len(self._people) == 1 else self._identity
        return (next(iter(only.values())) if len(only) == 1 else None), path

    async def _metadata(self, visit: Visit, provider: Identity, publishing: PublishesMetadata) -> LoginAnswer:
        if visit.request.method not in ("GET", "HEAD"):
            return answers.method_not_allowed(["GET"])
        try:
            return answers.document(await self._providers.metadata(provider, publishing))
        except Exception as error:
            return self._events.record_failure(error, visit.request, provider.name)

    # --- start of a sign-in ---

    async def begin(
        self, visit: Visit, goal: CliReturnTo | DeviceReturnTo | ApplicationReturnTo, name: str | None
    ) -> LoginAnswer:
        """Sign in for *goal* with the provider *name*. Without a name the user chooses if there are several."""
        if name is None and len(self._people) > 1:
            try:
                return await self._offer(visit, goal)
            except Exception as error:
                return await self._outcomes.failure(error, visit.request, "", goal)
        provider = self._identity[name] if name else next(iter((self._people or self._identity).values()))
        if isinstance(goal, CliReturnTo) and visit.html and sign_in_kind(provider) is SignIn.NEGOTIATE:
            # A Negotiate sign-in needs no action that another site could not trigger in the user's browser. So sign in
            # first, and then require consent, as for a user who is already signed in.
            answer = await self._visit(_as_provider_visit(visit, provider), provider, None)
            return _leading_back(answer, visit.request)
        return await self._visit(_as_provider_visit(visit, provider), provider, goal)

    async def _offer(self, visit: Visit, goal: CliReturnTo | DeviceReturnTo | ApplicationReturnTo) -> LoginAnswer:
        if not visit.html:
            return answers.error(400, "there are several identity providers: choose one with provider=")
        if wait := self._starts.wait(visit.request):
            return answers.too_many(wait)
        urls = {name: f"/auth/{name}/start" for name in self._people}
        return views.choose(self._site, urls, goal, (await self._flows.begin(Flow(goal=goal)),))

    async def _start(self, visit: Visit, provider: Identity) -> LoginAnswer:
        """Start a sign-in for the return target that this browser chose before.

        Links and forms of our own pages lead here, and those pages show the target. Another site must not skip them:
        the sign-in itself may need no action of the user.
        """
        if not comes_from(visit.request, self._site.external_url):
            return answers.error(403, "the request was sent by a page of another site")
        try:
            goal = await self._flows.goal(visit.request)
        except OstiaryError as error:
            return self._events.record_failure(error, visit.request, provider.name)
        if goal is None:
            return answers.error(400, "this sign-in has expired: start again")
        return await self._visit(_as_provider_visit(visit, provider), provider, goal, pending=True)

    async def _visit(self, visit: Visit, provider: Identity, goal: ReturnTo, *, pending: bool = False) -> LoginAnswer:
        """Send the request to *provider*. With *pending* the login transaction that stores *goal* exists already."""
        request, typed = visit.request, ""
        if (token := bearer(request)) and self._exchange.accepts(provider):
            if goal is None:
                return await self._exchange.sign_in(provider, token, request)
            # A command line or a device would get a session that is refreshed and outlives the token, even a single-use
            # token.
            refusal = LoginRefused(
                "a program exchanges its token at /auth/token", cause="it asked for a person's session"
            )
            return self._events.record_refusal(refusal, request, answers.refusal(refusal), provider.name)
        if visit.html and request.method == "POST" and field(request, "username") is not None:
            typed, request = field(request, "username") or "", _as_basic(request)
        try:
            outcome = await self._providers.visit(provider, request, goal)
            if isinstance(outcome, Challenge) and visit.html and views.is_basic(outcome.www_authenticate):
                problem = "wrong user name or password" if visit.request.method == "POST" else ""
                return await self._form(visit, provider, goal, pending=pending, problem=problem, username=typed)
            return await self._outcomes.answer(visit, outcome, goal)
        except LoginRefused as refusal:
            answer = await self._outcomes.refusal(refusal, request, goal)
            if visit.html and (typed or views.is_basic(refusal.www_authenticate)):
                answer = await self._form_again(visit, provider, goal, pending=pending, refusal=refusal, username=typed)
            return self._events.record_refusal(refusal, request, answer, provider.name)
        except Exception as error:
            return await self._outcomes.failure(error, visit.request, provider.name, goal)

    # --- return of the browser ---

    async def _return_by_post(self, visit: Visit, provider: Identity) -> LoginAnswer:
        """Store the form until the browser returns with its own cookie, which identifies the login transaction."""
        request = visit.request
        try:
            if request.method == "POST":
                if wait := self._starts.wait(request):
                    return answers.too_many(wait)
                return answers.redirect(await self._parked.park(request), 303)
            visit = replace(visit, request=await self._parked.claim(request))
        except Exception as error:
            return self._events.record_failure(error, request, provider.name)
        return await self._return(visit, provider)

    async def _return(self, visit: Visit, provider: Identity, *, with_groups: bool = False) -> LoginAnswer:
        flow: Flow | None = None
        calls = self._providers
        finish = calls.finish_groups if with_groups else calls.finish_identity
        try:
            flow = await self._flows.finish(visit.request)
            outcome = await finish(provider, visit.request, flow)
            return await self._outcomes.answer(visit, outcome, None if flow is None else flow.goal)
        except LoginRefused as refusal:
            answer = await self._outcomes.refusal(refusal, visit.request, flow.goal if flow else None)
            return self._events.record_refusal(refusal, visit.request, answer, provider.name)
        except Exception as error:
            return await self._outcomes.failure(error, visit.request, provider.name, flow.goal if flow else None)

    # --- the password form ---

    async def _form(
        self,
        visit: Visit,
        provider: Identity,
        goal: ReturnTo,
        *,
        pending: bool,
        refusal: LoginAnswer | None = None,
        problem: str = "",
        username: str = "",
    ) -> LoginAnswer:
        """Return the page with the password form. The login transaction stores the return target."""
        if goal is not None and not pending and (wait := self._starts.wait(visit.request)):
            return answers.too_many(wait)
        headers = [] if goal is None or pending else [await self._flows.begin(Flow(goal=goal))]
        status = 200
        if refusal is not None:
            status = refusal.status
            # Every 401 has a challenge. A Basic challenge would make the browser open its own password dialog.
            source = refusal if status != 401 else answers.bearer_challenge()
            headers += [header for header in source.headers if header[0] in ("Retry-After", "WWW-Authenticate")]
        return views.password(
            self._site,
            provider=provider.name,
            action=f"/auth/{provider.name}" + ("" if goal is None else "/start"),
            goal=goal,
            problem=problem,
            username=username,
            status=status,
            headers=headers,
        )

    async def _form_again(
        self, visit: Visit, provider: Identity, goal: ReturnTo, *, pending: bool, refusal: LoginRefused, username: str
    ) -> LoginAnswer:
        answer, problem = answers.refusal(refusal), refusal.summary
        try:
            return await self._form(
                visit, provider, goal, pending=pending, refusal=answer, problem=problem, username=username
            )
        except Exception as error:
            # The caller still records the denial.
            return await self._outcomes.failure(error, visit.request, provider.name, goal)


def _as_provider_visit(visit: Visit, provider: Identity) -> Visit:
    """Rewrite the path to ``/auth/<name>``: a provider sees the same path for every route that leads to it."""
    return replace(visit, request=replace(visit.request, path=f"/auth/{provider.name}", query=()))


def _leading_back(answer: LoginAnswer, request: LoginRequest) -> LoginAnswer:
    """Return *answer*, but redirect a browser that it signs in back to *request*."""
    if answer.status != 303:
        return answer
    headers = tuple(header for header in answer.headers if header[0] != "Location")
    return replace(answer, headers=(("Location", f"{request.path}?{urlencode(request.query)}"), *headers))


def _as_basic(request: LoginRequest) -> LoginRequest:
    """Rewrite a form with name and password to ``Authorization: Basic``, which clients without a browser send."""
    username, password = (field(request, name) or "" for name in ("username", "password"))
    headers = tuple(header for header in request.headers if header[0] not in ("authorization", "content-type"))
    # In Basic credentials a colon would end the name early and turn it into another name.
    pair = f"{username}:{password}" if ":" not in username else ":"
    encoded = base64.b64encode(pair.encode("utf-8", "surrogatepass")).decode()
    return replace(request, method="GET", form=(), headers=(*headers, ("authorization", f"Basic {encoded}")))
