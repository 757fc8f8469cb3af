"""Lines of a policy, and of a list of groups, that can match nobody who signs in at this gateway.

    the subjects that a policy names, with their places  ->  can the configured providers produce them?  ->  findings

Called by ``ostiary serve --check`` and ``ostiary policy lint``. To a provider such a line looks correct. Only the whole
configuration shows that nobody can have this name, as when a provider was given a prefix after the policy was
written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ostiary.core.abilities import ability
from ostiary.core.users.implied_groups import AUTHENTICATED
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.policy.possible_subjects import SYSTEM, NameSource, PossibleSubjects
from ostiary.interfaces.authorization import Finding, Level, NamesSubjects, Subject
from ostiary.model import Place, Problem

RULE = "matches-nobody"


def find_unmatched(config: GatewayConfig) -> tuple[Finding, ...]:
    """The lines of the policy files and group lists of *config* that match nobody."""
    possible = PossibleSubjects.from_config(config)
    findings = [*unmatched_members(possible)]
    for link in config.authorization.chain:
        naming = ability(link.instance, NamesSubjects)
        if naming is not None:
            findings += unmatched_subjects(naming.named_subjects(), possible)
    return tuple(findings)


def unmatched_subjects(named: Iterable[tuple[Subject, Place]], possible: PossibleSubjects) -> Iterator[Finding]:
    if possible.anybody:
        return
    for subject, place in named:
        if why := _why_nobody(subject, possible):
            # A cluster's own policy has many of them, and somebody may still impersonate one.
            level = Level.INFO if subject.kind == "ServiceAccount" or _is_system(subject.name) else Level.WARNING
            problem = Problem(f'{subject.kind} "{subject.name}" matches nobody: {why}', place, _hint(subject, possible))
            yield Finding(level, RULE, problem)


def unmatched_members(possible: PossibleSubjects) -> Iterator[Finding]:
    for member in possible.members:
        if not possible.can_be_user(member.username):
            why = _why_nobody(Subject("User", member.username), possible)
            message = f'member "{member.username}" of group "{member.group}" matches nobody: {why}'
            hint = _hint(Subject("User", member.username), possible)
            yield Finding(Level.WARNING, RULE, Problem(message, member.place, hint))


def _why_nobody(subject: Subject, possible: PossibleSubjects) -> str:
    """Why nobody who signs in is *subject*; empty if somebody can be."""
    name = subject.name
    if possible.can_be_service_account(subject):
        return ""
    if subject.kind == "ServiceAccount" or (_is_system(name) and name != AUTHENTICATED):
        return "nobody signs in as a system user; only users who may impersonate it can act as it"
    if subject.kind == "Group":
        fitting = [source for source in possible.groups if name.startswith(source.prefix)]
        return "" if possible.can_be_group(name) else _why("group", possible.groups, fitting)
    return "" if possible.can_be_user(name) else _why("identity", possible.users, possible.owners(name))


def _why(kind: str, sources: tuple[NameSource, ...], fitting: list[NameSource]) -> str:
    if not sources:
        return f"there is no {kind} provider"
    if fitting:
        return f"{_names_of(fitting)} {'does' if len(fitting) == 1 else 'do'} not know it"
    prefixes = ", ".join(f'"{source.prefix}"' for source in sources)
    return f"names of {_names_of(sources)} begin with {prefixes}"


def _names_of(sources: Iterable[NameSource]) -> str:
    return ", ".join(f'"{source.provider}"' for source in sources)


def _hint(subject: Subject, possible: PossibleSubjects) -> str | None:
    near = possible.near_group(subject.name) if subject.kind == "Group" else possible.near_user(subject.name)
    return f'did you mean "{near}"?' if near else None


def _is_system(name: str) -> bool:
    return name.startswith(SYSTEM)
