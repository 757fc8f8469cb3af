"""Follow the files of a policy: put changes into force, and keep the previous policy if there are errors.

    look -> read changed files -> determine changed objects -> RbacPolicy.apply

A thread checks the files on inotify events in one of the directories, and every second in any case: inotify reports
nothing for network file systems and for links to files elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.platform.inotify import CREATED, DELETED, IS_DIRECTORY, MOVED_FROM, MOVED_TO, WRITTEN, Inotify
from ostiary.core.watched_file import is_settled
from ostiary.errors import ConfigurationError
from ostiary.model import Problem
from ostiary_gateway.providers.rbac.file_load import FileContents, Look, ManifestFiles, Paths, check_manifests
from ostiary_gateway.providers.rbac.index import ObjectKey
from ostiary_gateway.providers.rbac.long_work import free_lists, long_work
from ostiary_gateway.providers.rbac.policy import ObjectChange, RbacPolicy, key_of, warn_of_missing_roles
from ostiary_gateway.wire.rbac import Binding, Manifests, Role, together

POLL_SECONDS = 1.0
# Maximum fraction of the time to spend on checks. Checking a policy of very many files takes a while.
POLL_SHARE = 0.1
# The same limit while other files in the directories change all the time.
EVENT_SHARE = 0.25
# Files are often written one after the other, so wait for the last one, but not for long.
QUIET_SECONDS, MOST_SECONDS = 0.002, 0.02
MAX_FOLDERS = 4096
_EVENTS = WRITTEN | MOVED_FROM | MOVED_TO | CREATED | DELETED

log = logging.getLogger("ostiary.rbac")


class FollowedFiles:
    """The policy of the files at *paths*. With *watch*, `start` begins to follow them; `check_now` reads immediately.

    `problems` holds the errors of files that are not in force. Raises `ConfigurationError` if the first read has any.
    """

    def __init__(self, paths: Paths, *, defaults: bool, watch: bool, clock: Clock = SYSTEM_CLOCK) -> None:
        self.problems: tuple[Problem, ...] = ()
        self._files = ManifestFiles(paths, clock=clock)
        self._clock = clock
        self._checking = threading.Lock()
        self._stop = threading.Event()
        self._inotify: Inotify | None = None
        self._thread: threading.Thread | None = None
        with long_work():
            self._contents: FileContents
            look, self._contents = self._files.read_at_one_moment(self._files.look())
            # None: read again, whatever the fingerprints.
            self._look: Look | None = look
            self.policy = RbacPolicy(check_manifests(together(self._contents.values())), defaults=defaults)
        warn_of_missing_roles(self.policy)
        # Started by the first use and not before: a thread does not survive the fork that starts a worker.
        self.to_start = watch and bool(self._files.paths)

    # --- one check ---

    def check_now(self) -> bool:
        """Read the files, and put changes into force. Return whether decisions changed. Never raises for a bad file."""
        with self._checking:
            look = self._files.look()
            if look == self._look and is_settled(look.values(), self._clock) and self._files.is_read(look):
                return False
            # If this fails for a reason that is not in the files, the next check tries again.
            self._look = None
            with long_work():
                look, contents = self._files.read_at_one_moment(look)
                is_change = self._take_up(contents)
            self._look = look
            return is_change

    def _take_up(self, contents: FileContents) -> bool:
        changed = _changed_files(self._contents, contents)
        if not changed:
            self.problems = ()
            return False
        try:
            contents = self._with_objects_in_force(contents, changed)
            is_change = self.policy.apply(ObjectChange(*change) for change in self._changes(contents, changed).items())
        except ConfigurationError as error:
            self._keep_the_old(error.problems or (Problem(error.summary),))
            return False
        self.problems = ()
        leftovers = [self._contents[file] for file in changed if file in self._contents]
        self._contents = contents
        free_lists(leftovers)
        if is_change:
            log.info("revision %d of the RBAC policy is in force", self.policy.index.revision)
            warn_of_missing_roles(self.policy)
        return is_change

    def _with_objects_in_force(self, contents: FileContents, changed: list[str]) -> FileContents:
        """Return *contents* with the objects in force where they are equal, so that only differences are applied."""
        if any(contents[file].problems for file in changed if file in contents):
            check_manifests(together(contents.values()))
        adopted = {file: self._with_known_objects(contents[file]) for file in changed if file in contents}
        self._files.remember(adopted)
        return {**contents, **adopted}

    def _with_known_objects(self, manifests: Manifests) -> Manifests:
        roles, bindings = [], []
        for role in manifests.roles:
            known = self.policy.get(key_of(role))
            roles.append(known if isinstance(known, Role) and _is_same_role(known, role) else role)
        for binding in manifests.bindings:
            known = self.policy.get(key_of(binding))
            is_same = isinstance(known, Binding) and known == binding and known.place == binding.place
            bindings.append(known if isinstance(known, Binding) and is_same else binding)
        return Manifests(tuple(roles), tuple(bindings), manifests.ignored, manifests.problems)

    def _changes(self, contents: FileContents, changed: list[str]) -> dict[ObjectKey, Role | Binding | None]:
        """Return the differences to the policy in force. Raises `ConfigurationError` if an object is defined twice."""
        gone = {key_of(item) for file in changed for item in _objects(self._contents.get(file))}
        objects: dict[ObjectKey, Role | Binding | None] = {}
        for file in changed:
            for item in _objects(contents.get(file)):
                key = key_of(item)
                if key in objects or (key not in gone and self.policy.get(key) is not None):
                    # The other definition may be in any file, so check all of them.
                    check_manifests(together(contents.values()))
                objects[key] = item
        for key in gone:
            objects.setdefault(key)
        return objects

    def _keep_the_old(self, problems: tuple[Problem, ...]) -> None:
        # Log once, not at every check.
        if problems != self.problems:
            texts = "; ".join(map(str, problems[:5]))
            log.error("the changed RBAC policy has %d mistakes, and the old one stays: %s", len(problems), texts)
        self.problems = problems

    # --- following ---

    def start(self) -> None:
        """Start the thread, once, if *watch* is set."""
        with self._checking:
            if not self.to_start:
                return
            inotify = Inotify.open()
            thread = threading.Thread(target=self._run, args=(inotify,), name="ostiary-rbac-watch", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The system cannot start a thread. The next use tries again: never use a policy that is not followed.
                if inotify is not None:
                    inotify.close()
                raise
            self._inotify, self._thread = inotify, thread
            self.to_start = False

    async def close(self) -> None:
        """Stop following the files. The policy in force stays."""
        self.to_start = False
        self._stop.set()
        thread, self._thread = self._thread, None
        if self._inotify is not None:
            self._inotify.wake()
        if thread is not None:
            await asyncio.to_thread(thread.join)

    def _run(self, inotify: Inotify | None) -> None:
        while not self._stop.is_set():
            started = SYSTEM_CLOCK.monotonic()
            folders = self._files.folders
            if inotify is not None:
                _watch_folders(inotify, folders)
            is_change = False
            try:
                is_change = self.check_now()
            except Exception:
                # A bug in one check must not silently end all later ones.
                log.exception("the RBAC policy cannot be watched at this moment")
            if inotify is not None and self._files.folders != folders:
                # Events of new directories arrive only once they are watched, so check again.
                continue
            took = SYSTEM_CLOCK.monotonic() - started
            if not is_change:
                # Another process may write to these directories all the time.
                self._stop.wait(min(took / EVENT_SHARE, POLL_SECONDS))
            _wait_for_change(inotify, self._stop, max(POLL_SECONDS, took / POLL_SHARE))
        if inotify is not None:
            inotify.close()


def _watch_folders(inotify: Inotify, folders: frozenset[str]) -> None:
    for folder in sorted(folders)[:MAX_FOLDERS]:
        inotify.watch(folder, _EVENTS)


def _wait_for_change(inotify: Inotify | None, stop: threading.Event, seconds: float) -> None:
    """Wait until a watched directory changes, at most *seconds*."""
    if inotify is None:
        stop.wait(seconds)
        return
    until = SYSTEM_CLOCK.monotonic() + seconds
    while not stop.is_set() and inotify.wait(max(0.0, until - SYSTEM_CLOCK.monotonic())):
        if any(map(_may_matter, inotify.events())):
            break
    until = SYSTEM_CLOCK.monotonic() + MOST_SECONDS
    while not stop.is_set() and SYSTEM_CLOCK.monotonic() < until and inotify.wait(QUIET_SECONDS):
        list(inotify.events())


def _may_matter(mask: int) -> bool:
    # A new file is empty; another event follows when it was written.
    return not mask & CREATED or bool(mask & IS_DIRECTORY)


def _changed_files(before: FileContents, after: FileContents) -> list[str]:
    return [file for file in {**after, **before} if before.get(file) is not after.get(file)]


def _objects(manifests: Manifests | None) -> tuple[Role | Binding, ...]:
    return () if manifests is None else (*manifests.roles, *manifests.bindings)


def _is_same_role(role: Role, other: Role) -> bool:
    """Equal, and with the same positions of the role and its rules."""
    places = (role.place, *(rule.place for rule in role.rules))
    return role == other and places == (other.place, *(rule.place for rule in other.rules))
