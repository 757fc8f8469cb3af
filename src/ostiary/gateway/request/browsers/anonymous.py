"""Requests to public paths: forwarded without a user, whoever sends them, and without asking the policy.

Called by the gate of web applications. To the audit record the user is Kubernetes' anonymous one. Limits count for each
network address apart, so that one visitor of public pages does not use up the share of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from ostiary.core.net.networks import network
from ostiary.gateway.admit.limits import Limits
from ostiary.gateway.audit.source_ips import Network, source_ips
from ostiary.gateway.authenticate.tokens_in_use import KnownUser, TokenInUse
from ostiary.gateway.authorize.ruling import NOTHING_ASKED
from ostiary.gateway.request.answers import Answers
from ostiary.gateway.request.browsers.authorization import forward_authorization
from ostiary.gateway.request.questions import NoRoute, Questions
from ostiary.gateway.request.remembered.plans import Planner
from ostiary.gateway.request.stages import Passage, RequestPlan
from ostiary.gateway.request.target import AmbiguousRequest
from ostiary.interfaces.token_store import Found, Session, TokenRecord
from ostiary.model import UserInfo

ANONYMOUS = UserInfo("system:anonymous", groups=("system:unauthenticated",))
_NEVER = datetime.max.replace(tzinfo=UTC)
_ALWAYS = datetime.min.replace(tzinfo=UTC)
_NOBODY = Found(TokenRecord(b"", "", _ALWAYS, _NEVER), Session("", ANONYMOUS, "", _ALWAYS, _NEVER))

Admit = Callable[[Passage, TokenInUse, RequestPlan], None]


class AnonymousRequests:
    """For the public paths of one engine. *admit* goes on with a request that is decided on."""

    def __init__(
        self,
        questions: Questions,
        planner: Planner,
        limits: Limits,
        answers: Answers,
        admit: Admit,
        *,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._trusted_proxies = trusted_proxies
        self._questions = questions
        self._planner = planner
        self._limits = limits
        self._answers = answers
        self._admit = admit
        self._known_user = KnownUser(ANONYMOUS)

    def serve(self, passage: Passage) -> None:
        request = passage.exchange.request
        try:
            question = self._questions.of(request)
        except (AmbiguousRequest, ValueError) as error:
            self._answers.send_bad_request(passage, str(error))
            return
        except NoRoute:
            self._answers.send_no_route(passage)
            return
        assert question.public, "the gate has looked at the same path"
        if question.upstream is not None and question.upstream.settings.pass_authorization:
            forward_authorization(passage.scanned)
        plan = self._planner.make(request, question, NOTHING_ASKED, ANONYMOUS)
        forwarded = [line.decode("latin-1") for line in passage.scanned.forwarded_for]
        remote = passage.exchange.connection.remote_address
        address = network(source_ips(remote, forwarded_for=forwarded, trusted=self._trusted_proxies)[0])
        plan.share = self._limits.share(UserInfo(f"{ANONYMOUS.username} {address}", groups=ANONYMOUS.groups))
        # One of its own for each: a revocation ends what is open, and not what comes later.
        self._admit(passage, TokenInUse(_NOBODY, self._known_user), plan)
