"""What was likely misspelt in a question, or in the scope of a token: policies know no such thing. Pure.

Called by the commands that people write verbs and resources for. A name that looks wrong may be right in an API that is
not Kubernetes', so these are notes and never refusals.
"""

from __future__ import annotations

from difflib import get_close_matches

from ostiary.core.delegation import Scope
from ostiary.core.delegation.scope import group_and_resource
from ostiary.core.rules import ANY
from ostiary.model import RequestInfo
from ostiary.wire.request.resource_names import SUBRESOURCES, group_of, plural_of

VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
_PATH_VERBS = ("get", "head", "post", "put", "patch", "delete", "options")
# No request has them, but Kubernetes asks policies about them.
_VERBS_OF_POLICIES = ("approve", "attest", "bind", "escalate", "impersonate", "proxy", "sign", "use")


def misspelling_notes(request: RequestInfo) -> list[str]:
    notes = (_resource_note(request), _subresource_note(request)) if request.is_resource else ()
    return [note for note in (_verb_note(request), *notes) if note]


def scope_notes(scope: Scope) -> list[str]:
    """What in *scope* matches nothing that Kubernetes has, or more than it seems to."""
    notes: list[str] = []
    for rule in scope.rules:
        verbs = [verb for verb in rule.verbs if verb != ANY]
        for resource in rule.resources:
            group, name = group_and_resource(resource)
            kind, _, subresource = name.partition("/")
            if kind == ANY:
                notes += [f'"{rule}" includes secrets, and with create a shell in every pod'] if not subresource else []
                continue
            about = RequestInfo("get", "", "", True, api_group=group, resource=kind, subresource=subresource)
            notes += misspelling_notes(about)
        of_paths = bool(rule.paths)
        notes += filter(None, (_verb_note(RequestInfo(verb, "", "", not of_paths)) for verb in verbs))
    return list(dict.fromkeys(notes))


def _verb_note(request: RequestInfo) -> str | None:
    verbs = (*VERBS, *_VERBS_OF_POLICIES) if request.is_resource else _PATH_VERBS
    # There are more of one kind: impersonate-on:user-info:get, say.
    if request.verb in verbs or ":" in request.verb:
        return None
    close = get_close_matches(request.verb.lower(), verbs, n=1)
    suggestion = f'did you mean "{close[0]}"?' if close else f"there are {', '.join(verbs)}"
    return f'no request has the verb "{request.verb}": {suggestion}'


def _resource_note(request: RequestInfo) -> str | None:
    """Policies know the plural in lower case only, and each resource in its own API group."""
    name, plural = request.resource, plural_of(request.resource)
    # Who names a group knows it.
    group = None if request.api_group else group_of(plural or name)
    suggestion = (plural or name) + (f".{group}" if group else "")
    if plural:
        return f'resources are named in the plural and in lower case: did you mean "{suggestion}"?'
    if not name.endswith("s") or name != name.lower():
        return f'resources are named in the plural and in lower case, and "{name}" does not look like it'
    if group:
        return f'"{name}" is asked for in the core API group: did you mean "{suggestion}"?'
    return None


def _subresource_note(request: RequestInfo) -> str | None:
    """kubectl takes pods/web for a name, where a policy has a subresource."""
    is_known = group_of(request.resource) or request.api_group == ""
    if not request.subresource or request.subresource in SUBRESOURCES or not is_known or request.name:
        return None
    return (
        f'"{request.subresource}" is asked for as a subresource: '
        f"the name of an object stands by itself, as in {request.resource} {request.subresource}"
    )
