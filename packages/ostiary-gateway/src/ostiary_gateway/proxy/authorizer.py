"""Query the authorization chain of the policy in force.

The policy in force is that of the engine's configuration; after a reload, that of the next configuration, which also
resolves the attributes of in-flight requests again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ostiary.core.scopes import Delegation
from ostiary.errors import ProviderError
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.authorization.capabilities import questions_about
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.impersonation import required_permissions
from ostiary_gateway.authorization.implied_groups import complete_impersonated
from ostiary_gateway.authorization.token_scope import refusal_by_scope
from ostiary_gateway.proxy.context import RequestAttributes, RequestContext, RequestPlan
from ostiary_gateway.proxy.resolver import NoRoute, RequestResolver


@dataclass(frozen=True, slots=True)
class ImpersonationDecision:
    """The decision on an impersonated request.

    It refers to the attributes `question` of `user`. If the actor may not impersonate the user, they are the missing
    permission and the actor. `permissions` are all that the impersonation requires.
    """

    ruling: CachedDecision
    user: UserInfo
    question: RequestAttributes
    permissions: tuple[RequestInfo, ...]


class RequestAuthorizer:
    """Query the authorization chain on behalf of one engine.

    `decide` and `authorize` have the contract of `ostiary_gateway.interfaces.authorization` and of the chain: `decide`
    returns immediately, or None; `authorize` waits. Call `decide` first, and `authorize` in a task if it returned None.
    Both check the scope of a token first: *delegation* is the scope, None for an unscoped token.
    """

    def __init__(self, authorizer: Authorizer, questions: RequestResolver) -> None:
        self._authorizer = authorizer
        self._questions = questions
        self._was_replaced = False

    def follow(self, successor: RequestAuthorizer) -> None:
        """Use the policy of *successor* from now on: another configuration has taken over."""
        self._authorizer, self._questions = successor._authorizer, successor._questions
        self._was_replaced = True

    @property
    def generation(self) -> int:
        return self._authorizer.generation

    @property
    def cache_seconds(self) -> float:
        return self._authorizer.cache_seconds

    def is_valid(self, ruling: CachedDecision) -> bool:
        """Return whether *ruling* may be used again.

        Generations of another configuration's policy are not comparable.
        """
        return not self._was_replaced and self._authorizer.is_valid(ruling)

    def decide(
        self, user: UserInfo, required: Sequence[RequestInfo], delegation: Delegation | None = None
    ) -> CachedDecision | None:
        """Return the decision on all of *required*, or None if that requires waiting.

        Also returns None if a provider failed; `authorize` raises the error.
        """
        if delegation is not None and (refusal := self._refusal_by_scope(delegation, required)):
            return refusal
        try:
            return self._authorizer.decide(*(Attributes(user, info) for info in required))
        except ProviderError:
            return None

    def name_matters(self, user: UserInfo, required: Sequence[RequestInfo], delegation: Delegation | None) -> bool:
        """Return whether the fresh decision on *required* could differ for an object with another name."""
        if delegation is not None and delegation.has_names:
            return True
        return any(self._authorizer.name_matters(Attributes(user, info)) for info in required)

    async def authorize(
        self, user: UserInfo, required: Sequence[RequestInfo], delegation: Delegation | None = None
    ) -> CachedDecision:
        """Return the decision on all of *required*; raises `ProviderError` if a provider could not be queried."""
        if delegation is not None and (refusal := self._refusal_by_scope(delegation, required)):
            return refusal
        return await self._authorizer.authorize(*(Attributes(user, info) for info in required))

    async def authorize_impersonation(
        self, actor: UserInfo, user: UserInfo, question: RequestAttributes, delegation: Delegation | None = None
    ) -> ImpersonationDecision:
        """Authorize ``kubectl --as``: *actor* must be allowed to impersonate *user*, and *user* to send the request.

        The scope of the actor's token must include both. Raises `ProviderError`.
        """
        permissions = tuple(required_permissions(user, upstream=question.info.upstream))
        refused = await self._first_refusal(actor, permissions, delegation)
        if refused is not None:
            permission, ruling = refused
            # Never hidden: the attributes contain only what the actor has sent.
            ruling = replace(ruling, hidden=False)
            return ImpersonationDecision(ruling, actor, RequestAttributes(permission, (), question.target), permissions)
        user = complete_impersonated(user)
        ruling = await self.authorize(user, question.required, delegation)
        return ImpersonationDecision(ruling, user, question, permissions)

    async def authorize_plan(self, plan: RequestPlan, required: Sequence[RequestInfo]) -> CachedDecision:
        """Return the decision on the request of *plan*, impersonation included; raises `ProviderError`."""
        if plan.actor is not None:
            refused = await self._first_refusal(plan.actor, plan.impersonation, plan.delegation)
            if refused is not None:
                return refused[1]
        return await self.authorize(plan.user, required, plan.delegation)

    async def _first_refusal(
        self, actor: UserInfo, permissions: Sequence[RequestInfo], delegation: Delegation | None
    ) -> tuple[RequestInfo, CachedDecision] | None:
        """Return the first of *permissions* that *actor* does not have, with the decision on it."""
        for permission in permissions:
            ruling = await self.authorize(actor, (permission,), delegation)
            if not ruling.allowed:
                return permission, ruling
        return None

    def _refusal_by_scope(self, delegation: Delegation, required: Sequence[RequestInfo]) -> CachedDecision | None:
        for request in required:
            if delegation.layer_that_refuses(request) is not None:
                return refusal_by_scope(delegation, required, generation=self._authorizer.generation)
        return None

    def required_now(self, plan: RequestPlan, ctx: RequestContext) -> tuple[RequestInfo, ...] | None:
        """Return what the configuration in force requires for the request; None if it would not forward it."""
        if not self._was_replaced:
            return plan.required
        try:
            question = self._questions.of(ctx.exchange.request)
        except (NoRoute, ValueError):
            return None
        if not _is_same_upstream(plan, question):
            return None
        names = plan.info.capabilities
        return (*question.required, *questions_about(question.info, names)) if names else question.required


def _is_same_upstream(plan: RequestPlan, question: RequestAttributes) -> bool:
    """Return whether the request still goes to the same server, whatever else of its configuration has changed."""
    if plan.upstream is None or question.upstream is None:
        # A request that the gateway serves itself has no upstream.
        return plan.upstream is question.upstream and question.handler is not None
    old, new = plan.upstream.settings, question.upstream.settings
    return (old.server, old.socket) == (new.server, new.socket)
