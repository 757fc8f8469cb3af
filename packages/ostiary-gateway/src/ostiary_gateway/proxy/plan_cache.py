"""Cache what all requests of one user with the same request line have in common, while their decision is valid.

The engine lets the `Planner` make a plan after the decision, stores it in `Plans`, and checks `is_current` before it
uses the plan for another request.
"""

from __future__ import annotations

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.core.scopes import Delegation
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.audit.auditor import Auditor, Prepared
from ostiary_gateway.authentication.token_cache import KnownUser
from ostiary_gateway.authorization.cached_decision import CachedDecision
from ostiary_gateway.authorization.step_up import StepUpRules
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.authorizer import RequestAuthorizer
from ostiary_gateway.proxy.context import RequestAttributes, RequestPlan
from ostiary_gateway.proxy.reviews import is_token_review

PLAN_BYTES = 32 * 1024 * 1024
PLAN_BYTES_PER_USER = 4 * 1024 * 1024
LONGEST_PLANNED_TARGET = 2048
# About how often a plan contains its target: to be forwarded, in the attributes, and in the audit event of each stage.
_COPIES = 8
_FIXED_BYTES = 4000
# How long the policy's generation is cached. Providers notice a change of their files much later.
POLICY_SECONDS = 0.001

_Key = tuple[KnownUser, bytes, bytes, bytes, bytes]


class Plans:
    """The plans of one engine, bounded in bytes. Plans of a user evict only plans of the same user.

    Sizes are conservative estimates from the parts of a plan that can be large: its target and its user.
    """

    def __init__(self, size: float = PLAN_BYTES, per_user: float = PLAN_BYTES_PER_USER) -> None:
        self._kept: BoundedByOwner[_Key, RequestPlan] = BoundedByOwner(size, per_user)

    def find(self, user: KnownUser, request: RequestHead) -> RequestPlan | None:
        return self._kept.get((user, request.method, request.target, request.host, request.upgrade))

    def keep(self, user: KnownUser, request: RequestHead, plan: RequestPlan) -> None:
        plan.size = _FIXED_BYTES + _COPIES * (len(request.target) + user.size)
        if request.digest:
            plan.latest_heads.add(request.digest)
        if len(request.target) <= LONGEST_PLANNED_TARGET:
            key = (user, request.method, request.target, request.host, request.upgrade)
            self._kept.keep(key, plan, owner=user.info.username, size=plan.size)

    def clear(self) -> None:
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


class Planner:
    """Makes the plans of one engine and checks whether a plan is still valid."""

    def __init__(
        self,
        judge: RequestAuthorizer,
        limits: Limits,
        auditor: Auditor,
        metrics: Metrics,
        *,
        has_admission: bool,
        step_up: StepUpRules | None = None,
    ) -> None:
        self._judge = judge
        self._limits = limits
        self._auditor = auditor
        self._metrics = metrics
        self._has_admission = has_admission
        self._step_up = step_up
        self._generation = judge.generation
        self._read_generation_at = float("-inf")
        self._routing = 0

    def make(
        self,
        request: RequestHead,
        question: RequestAttributes,
        ruling: CachedDecision,
        user: UserInfo,
        *,
        actor: UserInfo | None = None,
        impersonation: tuple[RequestInfo, ...] = (),
        delegation: Delegation | None = None,
    ) -> RequestPlan:
        """Return the plan for *user*.

        *actor* sends the request on the user's behalf, which requires *impersonation*.
        """
        step_up = None
        if self._step_up is not None and ruling.allowed and not question.public:
            step_up = self._step_up.applying((*question.required, *impersonation), actor or user)
        audit = self._auditor.prepare(
            question.info,
            actor or user,
            request_uri=question.target.decode("latin-1"),
            decision=ruling,
            long_running=question.stream,
            impersonated=user if actor is not None and user != actor else None,
            delegation=delegation,
            step_up="" if step_up is None else step_up.names,
        )
        self._metrics.decisions.inc(ruling.verdict.value)
        upstream = question.upstream
        plan = RequestPlan(
            ruling,
            question.info,
            user,
            self._limits.share(actor or user),
            upstream,
            question.handler,
            audit,
            question.required,
            long_running=question.long_running,
            stream=question.stream,
            reviews_token=upstream is not None and upstream.is_kubernetes and is_token_review(question.info),
            actor=actor,
            impersonation=impersonation,
            delegation=delegation,
            public=question.public,
            # The revision when the request was resolved: routing may have changed while the decision was awaited.
            routing=question.routing,
            step_up=step_up,
        )
        if upstream is not None and ruling.allowed:
            # A plan with capabilities is made after its body was read.
            reader = None if question.info.capabilities else upstream.capabilities
            plan.reads_capabilities = reader is not None and reader.in_body_of(question.info)
            plan.at_once = not (
                question.stream
                or self._has_admission
                or _begins_record(audit)
                or plan.reviews_token
                or plan.reads_capabilities
                or step_up is not None
            )
            target = upstream.forwarded_target(question.target)
            # Redirect tokens do not carry the actor: the backend could not apply revocations to both users.
            if question.redirected and actor is None:
                plan.redirected, plan.target = True, target
            plan.passes_on = (
                plan.at_once and not plan.redirected and upstream.assertions is None and request.method != b"HEAD"
            )
            line = request.method + b" " + target + b" HTTP/1.1\r\n"
            plan.head = line + upstream.host_line + (b"" if question.public else upstream.identity(user))
        return plan

    @property
    def names_matter(self) -> bool:
        """Whether audit events or step-up rules may depend on the name of an object, apart from the decision."""
        return self._step_up is not None or self._auditor.policy.has_names

    def is_valid(self, plan: RequestPlan, now: float) -> bool:
        """Return whether *plan* may be used again unchanged."""
        if now >= self._read_generation_at:
            self._generation = self._judge.generation
            self._read_generation_at = now + POLICY_SECONDS
        ruling = plan.ruling
        return plan.routing == self._routing and ruling.generation == self._generation and now < ruling.until

    def is_current(self, plan: RequestPlan, user: UserInfo, now: float) -> bool:
        """Return whether *user* may use *plan* again. If only its time is up, the policy is queried again."""
        if self.is_valid(plan, now):
            return True
        if plan.routing != self._routing:
            return False
        ruling = plan.ruling
        renewed = self._judge.decide(user, plan.required, plan.delegation) if plan.required else None
        if renewed is None or renewed != ruling:
            # The plan depends on the decision, so it must be made again.
            return False
        plan.ruling = renewed
        plan.heads = 0
        return True

    def use_routing(self, routing: int) -> None:
        """Set the revision of the routing table. Plans with another revision are outdated."""
        self._routing = routing

    def read_generation_again(self) -> None:
        """Query the generation again: another policy is in force."""
        self._read_generation_at = float("-inf")


def _begins_record(audit: Prepared | None) -> bool:
    """Whether an audit event must be stored before the request is forwarded."""
    return audit is not None and (audit.wants_received or audit.wants_request_body)
