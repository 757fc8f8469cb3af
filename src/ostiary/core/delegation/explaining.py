"""Why a scope does not have a request: the rule that comes closest, what of it fails, and what to ask for.

Called for ``ostiary explain``. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostiary.core.delegation.scope import Scope, ScopeRule
from ostiary.model import RequestInfo


@dataclass(frozen=True, slots=True)
class ScopeMiss:
    """`closest` and `failed` are empty where no rule is about anything like the request."""

    closest: str
    failed: str
    remedy: str


def explain_miss(scope: Scope, request: RequestInfo) -> ScopeMiss:
    """Of a request that *scope* does not allow."""
    needed_rule = rule_for(request)
    remedy = f'a token with: --can "{needed_rule}"'
    candidates = [rule for rule in scope.rules if bool(rule.paths) is not request.is_resource]
    misses = [(_failed_conditions(rule, needed_rule), str(rule)) for rule in candidates]
    if not misses:
        return ScopeMiss("", "", remedy)
    failed, closest = min(misses, key=lambda miss: len(miss[0]))
    return ScopeMiss(closest, ", ".join(failed), remedy)


def rule_for(request: RequestInfo) -> ScopeRule:
    """The smallest rule that allows *request*."""
    upstreams = (request.upstream,) if request.upstream else ()
    if not request.is_resource:
        return ScopeRule((request.verb,), paths=(request.path,), upstreams=upstreams)
    group = f".{request.api_group}" if request.api_group else ""
    subresource = f"/{request.subresource}" if request.subresource else ""
    return ScopeRule(
        (request.verb,),
        (f"{request.resource}{group}{subresource}",),
        names=(request.name,) if request.name else (),
        namespaces=(request.namespace,) if request.namespace else None,
        upstreams=upstreams,
    )


def _failed_conditions(rule: ScopeRule, wanted: ScopeRule) -> list[str]:
    """The conditions of *rule* that do not hold: each is tried as if all others did."""
    if rule.of_kubernetes:
        # Where verb and path are those of discovery, the upstream is no Kubernetes API.
        return _failed_conditions(replace(rule, of_kubernetes=False), wanted) or ["upstream"]
    conditions = {
        "verb": ScopeRule(wanted.verbs, rule.resources, rule.paths, rule.names, rule.namespaces, rule.upstreams),
        "resource": ScopeRule(rule.verbs, wanted.resources, (), rule.names, rule.namespaces, rule.upstreams),
        "path": ScopeRule(rule.verbs, (), wanted.paths, (), (), rule.upstreams),
        "name": ScopeRule(rule.verbs, rule.resources, (), wanted.names, rule.namespaces, rule.upstreams),
        "namespace": ScopeRule(rule.verbs, rule.resources, (), rule.names, wanted.namespaces, rule.upstreams),
        "upstream": ScopeRule(rule.verbs, rule.resources, rule.paths, rule.names, rule.namespaces, wanted.upstreams),
    }
    relevant = ("verb", "path", "upstream") if rule.paths else ("namespace", "resource", "verb", "name", "upstream")
    own = Scope((rule,))
    return [name for name in relevant if own.first_beyond(Scope((conditions[name],)))]
