"""Rights that were actually used, per user, group or service account, from audit logs.

    audit logs  ->  RecordedRequest  ->  Use (verb, resource or path, namespace; how often, first and last)

Only allowed requests are a use: a denied one does not justify a right. Three kinds are counted separately: requests of
another user on behalf of this one, requests that the default roles allow to every user, and requests that no rule can
express.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from ostiary.core.policy_rules import ANY, DISCOVERY_PATHS, url_matches
from ostiary.errors import ConfigurationError
from ostiary.model import RequestInfo
from ostiary_gateway.audit.recorded import OWN_GROUP, RecordedRequest
from ostiary_gateway.authorization.capabilities import questions_of
from ostiary_gateway.authorization.implied_groups import service_account
from ostiary_gateway.interfaces.attributes import RequiresMore
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.proxy.reviews import is_self_review
from ostiary_gateway.wire.rbac import SERVICE_ACCOUNT, USER, USER_GROUP, is_dns_name

# More than a role could hold. Each takes about half a kilobyte.
MOST_RIGHTS = 500_000
_REFUSED = frozenset((401, 403))
_CREATED, _MAY_CREATE = 201, frozenset(("patch", "update"))
_CAPABILITIES = "capabilities"


@dataclass(frozen=True, slots=True)
class Right:
    """The smallest unit that a rule can allow.

    `resource` includes the subresource; `path` is for non-resource requests. `name` is empty for all objects. Only
    rules for named objects have one.
    """

    verb: str
    namespace: str = ""
    api_group: str = ""
    resource: str = ""
    name: str = ""
    path: str = ""


@dataclass(slots=True)
class Use:
    """How often a right was used, and when."""

    count: int
    first: datetime
    last: datetime


@dataclass(slots=True)
class SubjectUse:
    """What one subject used. `groups` are those of its requests.

    `denied` were denied, `by_others` were sent by another user on behalf of this one (`others`), `discovery` are
    allowed by the default roles, and `inexpressible` cannot be allowed by a rule without allowing more.
    """

    subject: Subject
    uses: dict[Right, Use] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    requests: int = 0
    denied: int = 0
    by_others: int = 0
    discovery: int = 0
    inexpressible: int = 0
    others: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class UsageSelection:
    """Which requests count. Without `users`, `groups` and `accounts`: those of all users, each user separately.

    Empty `namespaces` means all requests, including those without a namespace. A request that one of `proxies` sends on
    behalf of a user counts as that user's: that is how a gateway forwards requests. With `names`, rights are for the
    objects that were used.
    """

    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    accounts: frozenset[tuple[str, str]] = frozenset()
    namespaces: frozenset[str] = frozenset()
    since: datetime | None = None
    upstream: str = ""
    proxies: frozenset[str] = frozenset()
    include_denied: bool = False
    names: bool = False


class UsageCollector:
    """Collect the rights that requests used.

    *requiring* are the mappers whose requests need more than one permission.
    """

    def __init__(self, selection: UsageSelection, requiring: Sequence[RequiresMore] = ()) -> None:
        self._selection = selection
        self._requiring = requiring
        self._by_subject: dict[Subject, SubjectUse] = {}
        self._subjects: dict[str, Subject | None] = {}
        self._rights = 0
        self.upstreams: set[str] = set()

    def collect(self, records: Iterable[RecordedRequest]) -> list[SubjectUse]:
        """Return the use of each subject, the busiest first.

        Raises `ConfigurationError` if there are too many rights.
        """
        for record in records:
            self._take(record)
        return sorted(self._by_subject.values(), key=lambda use: (-use.requests, use.subject.kind, use.subject.name))

    def _take(self, record: RecordedRequest) -> None:
        selection, request = self._selection, record.attributes.request
        if selection.since is not None and record.at < selection.since:
            return
        if selection.namespaces and (not request.is_resource or request.namespace not in selection.namespaces):
            return
        if selection.upstream and request.upstream != selection.upstream:
            return
        subjects = self._subjects_of(record)
        if subjects and (request.upstream or (request.is_resource and request.api_group != OWN_GROUP)):
            # An empty name stands for the only upstream that the gateway had at that time.
            self.upstreams.add(request.upstream)
        for subject in subjects:
            use = self._by_subject.get(subject)
            if use is None:
                # Any text can be the name of an impersonated user, so bound the subjects too.
                self._check_room()
                use = self._by_subject[subject] = SubjectUse(subject)
            self._count(use, record, request)

    def _subjects_of(self, record: RecordedRequest) -> list[Subject]:
        selection, user = self._selection, record.attributes.user
        own = self._own_subject(user.username)
        subjects = [] if own is None else [own]
        if selection.groups:
            of_user = dict.fromkeys(user.groups)
            subjects += [Subject(USER_GROUP, group) for group in of_user if group in selection.groups]
        return subjects

    def _own_subject(self, username: str) -> Subject | None:
        """Return the user or the service account if its requests count."""
        if username in self._subjects:
            return self._subjects[username]
        selection, account = self._selection, service_account(username)
        everybody = not (selection.users or selection.groups or selection.accounts)
        subject = None
        if everybody or username in selection.users or (account is not None and account in selection.accounts):
            subject = Subject(USER, username) if account is None else Subject(SERVICE_ACCOUNT, account[1], account[0])
        self._subjects[username] = subject
        return subject

    def _count(self, use: SubjectUse, record: RecordedRequest, request: RequestInfo) -> None:
        selection = self._selection
        if record.actor and record.actor not in selection.proxies:
            use.by_others += 1
            use.others.add(record.actor)
            return
        use.groups.update(record.attributes.user.groups)
        if record.refused_by_scope or (_was_refused(record) and not selection.include_denied):
            use.denied += 1
            return
        use.requests += 1
        if is_self_review(request) or _is_discovery(request):
            use.discovery += 1
            return
        rights = [self._right(each) for each in self._all_needed(request, record.status)]
        if None in rights:
            use.inexpressible += 1
            return
        for right in rights:
            assert right is not None
            before = use.uses.get(right)
            if before is None:
                self._check_room()
                use.uses[right] = Use(1, record.at, record.at)
            else:
                before.count += 1
                before.first, before.last = min(before.first, record.at), max(before.last, record.at)

    def _all_needed(self, request: RequestInfo, status: int) -> list[RequestInfo]:
        """Return every permission that such a request needs."""
        needed = list(questions_of(request)) if request.capabilities else [request]
        if status == _CREATED and request.is_resource and request.verb in _MAY_CREATE:
            # Like `kubectl apply --server-side`: the API server requires both permissions when the object is new.
            needed.append(replace(request, verb="create", capabilities=()))
        also = (mapper.also_required(request) for mapper in self._requiring)
        return [*needed, *(more for more in also if more is not None)]

    def _right(self, request: RequestInfo) -> Right | None:
        """Return the right, or None if no rule says exactly this.

        A star in a name would be a wildcard, and a namespace must be valid.
        """
        if not request.is_resource:
            is_exact = _is_word(request.verb) and request.path.startswith("/") and ANY not in request.path
            return Right(request.verb, path=request.path) if is_exact else None
        resource = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
        if not (_is_word(request.verb) and _is_word(resource) and ANY not in request.api_group):
            return None
        if request.namespace and not is_dns_name(request.namespace):
            return None
        # A capability is identified by its name; a rule without names would allow unused capabilities.
        is_named = self._selection.names or request.resource == _CAPABILITIES
        if is_named and ANY in request.name:
            return None
        return Right(request.verb, request.namespace, request.api_group, resource, request.name if is_named else "")

    def _check_room(self) -> None:
        self._rights += 1
        if self._rights > MOST_RIGHTS:
            raise ConfigurationError(
                "the logs hold too many different rights",
                cause=f"more than {MOST_RIGHTS:,} users and rights",
                hint="choose some of them with --user, --namespace or --since, or leave out --names",
                code="config-invalid",
            )


def _was_refused(record: RecordedRequest) -> bool:
    """Report whether the policy, or the upstream or an admission check after it, denied the request."""
    return not record.decision.allowed or record.status in _REFUSED


def _is_discovery(request: RequestInfo) -> bool:
    """Report whether the default roles allow it to every authenticated user."""
    if request.is_resource or request.verb != "get":
        return False
    return any(url_matches(pattern, request.path) for pattern in DISCOVERY_PATHS)


def _is_word(text: str) -> bool:
    return bool(text) and ANY not in text
