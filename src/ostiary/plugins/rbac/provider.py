"""The rbac provider: Kubernetes' own roles and bindings, from files, decide who may do what.

    files -> manifests -> Index, swapped in whole      decide: one look into the index in force

It only ever allows or has no opinion. A thread checks whether the files have changed; a policy with a mistake in it
never comes into force, and the one before stays until it is mended.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Hashable
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.rules.matching import resource_keys
from ostiary.core.settings.declare import read_settings
from ostiary.core.users.implied_groups import AUTHENTICATED, UNAUTHENTICATED, implied_groups
from ostiary.core.watched_file import is_settled
from ostiary.errors import ConfigurationError
from ostiary.interfaces.authorization import Explanation, Finding, Grant, Rules, Subject
from ostiary.model import Attributes, Decision, Place, Problem, RequestInfo, UserInfo
from ostiary.plugins.rbac import explain, lint, listing
from ostiary.plugins.rbac.defaults import with_defaults
from ostiary.plugins.rbac.index import MASTERS, Index
from ostiary.plugins.rbac.load import Look, ManifestFiles, Paths, check_manifests
from ostiary.plugins.rbac.presence import NAMESPACES
from ostiary.plugins.rbac.settings import RbacSettings
from ostiary.wire.rbac import Manifests

POLL_SECONDS = 1.0
# Everybody is in one of these by being known or not, so no identity system needs to be asked.
_IMPLIED = frozenset((AUTHENTICATED, UNAUTHENTICATED))

log = logging.getLogger("ostiary.rbac")


class RbacAuthorization:
    """Decides by the RBAC manifests at *paths*, or by a *policy* that is no file; they cannot be given both.

    *defaults* adds the roles and bindings that a cluster begins with. With *watch*, changed files come into force
    within about a second; `check_now` looks at once. `problems` holds the mistakes of files that are not in force.

    Every method may be called from any thread. Raises `ConfigurationError` if the policy has mistakes.
    """

    def __init__(
        self,
        paths: Paths = (),
        *,
        policy: Manifests | None = None,
        defaults: bool = True,
        watch: bool = True,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._files = ManifestFiles(paths)
        if policy is not None and self._files.paths:
            raise ValueError("the policy is either in files or given")
        self._defaults = defaults
        self._clock = clock
        self._checking = threading.Lock()
        self._stop = threading.Event()
        # Started by the first use, and not before: a thread does not survive the fork that makes a worker.
        self._to_watch = watch and bool(self._files.paths)
        self._thread: threading.Thread | None = None
        self._look: Look = self._files.look()
        self._manifests = self._files.read() if policy is None else policy
        self._index = self._compile(check_manifests(self._manifests), 1)

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(RbacSettings, fields, context.directory)
        try:
            return cls(settings.paths, defaults=settings.defaults, watch=settings.watch, clock=context.clock)
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(str(problem), "paths", problem.hint)
            return cls(clock=context.clock)

    # --- deciding ---

    def decide(self, attributes: Attributes) -> Decision:
        if self._to_watch:
            self._start()
        return self._index.decide(attributes.user, attributes.request)

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        if self._to_watch:
            self._start()
        return self._index.groups() - _IMPLIED

    @property
    def revision(self) -> int:
        if self._to_watch:
            self._start()
        return self._index.revision

    def cache_key(self, attributes: Attributes) -> Hashable:
        """What the decision depends on: of the groups those with bindings, and the name only where rules have names."""
        index, user, request = self._index, attributes.user, attributes.request
        every = (*user.groups, *implied_groups(user))
        who = (user.username, frozenset(group for group in every if index.mentions(group) or group == MASTERS))
        if not request.is_resource:
            return (*who, request.verb, request.path)
        matters = _name_matters(index, request)
        what = (request.api_group, request.resource, request.subresource, request.name if matters else None)
        return (*who, request.verb, request.namespace, *what)

    def name_matters(self, attributes: Attributes) -> bool:
        """Whether rules have names for such a resource. For a path that is no resource's, all of it matters."""
        return not attributes.request.is_resource or _name_matters(self._index, attributes.request)

    # --- telling ---

    def rules_for(self, user: UserInfo, namespace: str) -> Rules:
        return listing.rules_for(self._index, user, namespace)

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...]:
        return listing.who_can(self._index, attributes.request)

    def gives_rights(self, user: UserInfo) -> bool:
        return self._index.gives_rights(user)

    def grants(self) -> tuple[Grant, ...]:
        return tuple(listing.grants(self._index))

    def named_subjects(self) -> tuple[tuple[Subject, Place], ...]:
        """Those of the files, and not those of the defaults."""
        return tuple((subject, binding.place) for binding in self._manifests.bindings for subject in binding.subjects)

    def explain(self, attributes: Attributes) -> Explanation:
        return explain.explain(self._index, attributes.user, attributes.request)

    @staticmethod
    def lint(paths: Paths) -> tuple[Finding, ...]:
        """What is wrong, or likely not what was meant, in a policy that need not be in force."""
        return lint.lint(paths)

    # --- following the files ---

    def check_now(self) -> bool:
        """Look, and put a changed policy into force; says whether it did. Never raises for a bad file."""
        with self._checking:
            look = self._files.look()
            if look == self._look and is_settled(look.values(), self._clock):
                return False
            # What changes while it is read looks different from what was seen, and is read next time.
            self._look = look
            manifests = self._files.read()
            if manifests.problems:
                self._keep_the_old(manifests.problems)
                return False
            self.problems = ()
            if manifests is self._manifests:
                return False
            # Comments and places do not decide anything, so decisions made before them still hold.
            changed = manifests != self._manifests
            self._manifests = manifests
            # The index carries its revision, so a reader always gets both of the same policy.
            self._index = self._compile(manifests, self._index.revision + changed)
            if changed:
                log.info("revision %d of the RBAC policy is in force", self._index.revision)
            return changed

    async def close(self) -> None:
        """Stop looking at the files. The policy in force stays."""
        self._to_watch = False
        self._stop.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _compile(self, manifests: Manifests, revision: int) -> Index:
        index = Index(with_defaults(manifests) if self._defaults else manifests, revision=revision)
        if index.missing_roles:
            # Such a binding gives nothing, and is no reason to do without the others.
            kind, namespace, name = min(index.missing_roles)
            where = f' in namespace "{namespace}"' if namespace else ""
            count = len(index.missing_roles)
            what = "a role that the RBAC policy binds does not exist:"
            if count > 1:
                what = f"{count} roles that the RBAC policy binds do not exist, such as"
            log.warning('%s %s "%s"%s', what, kind, name, where)
        return index

    def _keep_the_old(self, problems: tuple[Problem, ...]) -> None:
        # Told once, and not at every look while it stays the same.
        if problems != self.problems:
            texts = "; ".join(map(str, problems[:5]))
            log.error("the changed RBAC policy has %d mistakes, and the old one stays: %s", len(problems), texts)
        self.problems = problems

    def _start(self) -> None:
        with self._checking:
            if not self._to_watch:
                return
            self._to_watch = False
            self._thread = threading.Thread(
                target=self._run, args=(self._stop.wait,), name="ostiary-rbac-watch", daemon=True
            )
            self._thread.start()

    def _run(self, wait_or_stop: Callable[[float], bool]) -> None:
        while not wait_or_stop(POLL_SECONDS):
            try:
                self.check_now()
            except Exception:
                # A bug in one check must not silently end all later ones.
                log.exception("the RBAC policy cannot be watched at this moment")


def _name_matters(index: Index, request: RequestInfo) -> bool:
    keys = resource_keys(request.resource, request.subresource)
    return request.resource == NAMESPACES or not index.named_resources.isdisjoint(keys)
