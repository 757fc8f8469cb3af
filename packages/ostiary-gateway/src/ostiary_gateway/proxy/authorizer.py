"""Asks the policy in force whether a request is allowed.

Called by the engine and by everything that it makes decide once more: plans, waits, open exchanges. The policy in
force is the one of the engine's configuration. After a reload it is the one of the next configuration, which also
reads anew what a request asks for.

`decide` and `authorize` mean the same here as in `ostiary_gateway.interfaces.authorization` and in the chain: `decide`
answers at once or returns None, `authorize` waits. Call `decide` first, and `authorize` in a task if it returned None.
Both check a token that is less than its owner first: *delegation* is what makes it so, None for any other token.
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
    """The ruling on a request in another's name.

    It is about `question`, asked by `user`. If the actor may not be the other, these are the permission that is missing
    and the actor. `permissions` are all that the actor needs in order to be the other.
    """

    ruling: CachedDecision
    user: UserInfo
    question: RequestAttributes
    permissions: tuple[RequestInfo, ...]


class RequestAuthorizer:
    """For the requests of one engine."""

    def __init__(self, authorizer: Authorizer, questions: RequestResolver) -> None:
        self._authorizer = authorizer
        self._questions = questions
        self._was_replaced = False

    def follow(self, successor: RequestAuthorizer) -> None:
        """Another configuration has taken over: its policy decides from now on."""
        self._authorizer, self._questions = successor._authorizer, successor._questions
        self._was_replaced = True

    @property
    def generation(self) -> int:
        return self._authorizer.generation

    @property
    def cache_seconds(self) -> float:
        return self._authorizer.cache_seconds

    def is_valid(self, ruling: CachedDecision) -> bool:
        """Whether *ruling* may be used again. The generations of another configuration's policy say nothing."""
        return not self._was_replaced and self._authorizer.is_valid(ruling)

    def decide(
        self, user: UserInfo, required: Sequence[RequestInfo], delegation: Delegation | None = None
    ) -> CachedDecision | None:
        """The ruling on all of *required*, if nothing must be waited for.

        None, too, if a provider failed: `authorize` says how.
        """
        if delegation is not None and (refusal := self._refusal_by_scope(delegation, required)):
            return refusal
        try:
            return self._authorizer.decide(*(Attributes(user, info) for info in required))
        except ProviderError:
            return None

    def name_matters(self, user: UserInfo, required: Sequence[RequestInfo], delegation: Delegation | None) -> bool:
        """Whether the ruling on *required*, just decided, could be another one for an object of another name."""
        if delegation is not None and delegation.has_names:
            return True
        return any(self._authorizer.name_matters(Attributes(user, info)) for info in required)

    async def authorize(
        self, user: UserInfo, required: Sequence[RequestInfo], delegation: Delegation | None = None
    ) -> CachedDecision:
        """The ruling on all of *required*; raises `ProviderError` if somebody could not be asked."""
        if delegation is not None and (refusal := self._refusal_by_scope(delegation, required)):
            return refusal
        return await self._authorizer.authorize(*(Attributes(user, info) for info in required))

    async def authorize_impersonation(
        self, actor: UserInfo, user: UserInfo, question: RequestAttributes, delegation: Delegation | None = None
    ) -> ImpersonationDecision:
        """``kubectl --as``: *actor* must be allowed to be *user*, and *user* to do what is asked.

        The scope of the actor's token must have both. Raises `ProviderError`.
        """
        permissions = tuple(required_permissions(user, upstream=question.info.upstream))
        refused = await self._first_refusal(actor, permissions, delegation)
        if refused is not None:
            permission, ruling = refused
            # Never hidden: the question names nothing but what the actor wrote.
            ruling = replace(ruling, hidden=False)
            return ImpersonationDecision(ruling, actor, RequestAttributes(permission, (), question.target), permissions)
        user = complete_impersonated(user)
        ruling = await self.authorize(user, question.required, delegation)
        return ImpersonationDecision(ruling, user, question, permissions)

    async def authorize_plan(self, plan: RequestPlan, required: Sequence[RequestInfo]) -> CachedDecision:
        """The ruling on what *plan* was made for, impersonation included; raises `ProviderError`."""
        if plan.actor is not None:
            refused = await self._first_refusal(plan.actor, plan.impersonation, plan.delegation)
            if refused is not None:
                return refused[1]
        return await self.authorize(plan.user, required, plan.delegation)

    async def _first_refusal(
        self, actor: UserInfo, permissions: Sequence[RequestInfo], delegation: Delegation | None
    ) -> tuple[RequestInfo, CachedDecision] | None:
        """The first of *permissions* that *actor* does not have, with the ruling on it."""
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
        """What must be allowed, as the configuration in force reads the request; None if it would not forward it."""
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
    """Whether the request would still go where it went: the very server, whatever else is configured for it."""
    if plan.upstream is None or question.upstream is None:
        # What we answer ourselves has none.
        return plan.upstream is question.upstream and question.handler is not None
    old, new = plan.upstream.settings, question.upstream.settings
    return (old.server, old.socket) == (new.server, new.socket)
