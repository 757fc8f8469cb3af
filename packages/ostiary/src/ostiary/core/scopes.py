"""Token scopes: parse what a token may be used for, and check requests against it.

    --can "get,list pods -n shop"  ->  `parse_scope`  ->  `Scope`, a layer of  ->  `Delegation`  ->  the token record

The gateway checks every request against the delegation of its token before it queries the authorizers. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from ostiary.core.policy_rules import (
    ANY,
    DISCOVERY_PATHS,
    PolicyRule,
    RuleTable,
    resource_keys,
    rules_not_covered,
)
from ostiary.core.text import printable
from ostiary.errors import ScopeError
from ostiary.model import Attributes, RequestInfo

DISCOVERY = "discovery"


@dataclass(frozen=True, slots=True)
class ScopeRule:
    """RBAC-like rule: verbs on resources in some namespaces, or verbs on non-resource paths.

    Resources are written as in ``kubectl create role``: ``pods``, ``pods/log``, ``deployments.apps/scale``, ``*``.
    `namespaces` is None for all namespaces and for cluster-scoped requests. Empty `names` means all objects. Empty
    `upstreams` means all upstreams and the gateway's own API. A rule with `of_kubernetes` applies to Kubernetes APIs
    only: any other upstream may serve anything at the discovery paths.

    Matching follows Kubernetes RBAC (`core.policy_rules`). What RBAC expresses with bindings, the namespaces and
    upstreams, is part of the rule here.
    """

    verbs: tuple[str, ...]
    resources: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    namespaces: tuple[str, ...] | None = ()
    upstreams: tuple[str, ...] = ()
    of_kubernetes: bool = False

    def __str__(self) -> str:
        """Return the rule in the syntax that `parse_scope` reads."""
        if self.of_kubernetes:
            words = [DISCOVERY]
        else:
            words = [",".join(self.verbs), ",".join(self.paths or self.resources)]
        if self.names:
            words += ["--name", ",".join(self.names)]
        if self.resources:
            words += ["-A"] if self.namespaces is None else ["-n", ",".join(self.namespaces)]
        if self.upstreams:
            words += ["--upstream", ",".join(self.upstreams)]
        return " ".join(words)

    def policy_rules(self) -> tuple[PolicyRule, ...]:
        """Return the rule as RBAC rules, without namespaces and upstreams.

        An RBAC rule applies to every pair of its groups and resources.
        """
        if self.paths:
            return (PolicyRule(self.verbs, non_resource_urls=self.paths),)
        by_group: dict[str, list[str]] = {}
        for resource in self.resources:
            group, name = group_and_resource(resource)
            by_group.setdefault(group, []).append(name)
        return tuple(
            PolicyRule(self.verbs, (group,), tuple(resources), self.names) for group, resources in by_group.items()
        )

    def places(self) -> Iterator[tuple[str | None, str | None]]:
        """Yield every pair of namespace and upstream that the rule applies to; None stands for all."""
        namespaces: tuple[str | None, ...] = (None,) if self.paths or self.namespaces is None else self.namespaces
        upstreams: tuple[str | None, ...] = self.upstreams or (None,)
        return ((namespace, upstream) for namespace in namespaces for upstream in upstreams)

    def is_for(self, namespace: str | None, upstream: str | None) -> bool:
        """Return whether the rule applies to the namespace and the upstream.

        Pass None to check that it applies to all of them.
        """
        return (not self.upstreams or upstream in self.upstreams) and (
            bool(self.paths) or self.namespaces is None or namespace in self.namespaces
        )


_Compiled = tuple[ScopeRule, RuleTable[bool]]


def discovery_rule(upstreams: tuple[str, ...] = ()) -> ScopeRule:
    return ScopeRule(("get",), paths=DISCOVERY_PATHS, upstreams=upstreams, of_kubernetes=True)


@dataclass(frozen=True, slots=True)
class Scope:
    """A set of rules, at least one of which must allow a request. An empty scope allows nothing."""

    rules: tuple[ScopeRule, ...] = ()
    # Computed once: every request that misses the cache needs them.
    _text: str = field(init=False, repr=False, compare=False)
    _resources: tuple[_Compiled, ...] = field(init=False, repr=False, compare=False)
    _paths: tuple[_Compiled, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compiled = [(rule, RuleTable((each, True) for each in rule.policy_rules())) for rule in self.rules]
        object.__setattr__(self, "_text", "; ".join(map(str, self.rules)))
        object.__setattr__(self, "_resources", tuple(each for each in compiled if each[0].resources))
        object.__setattr__(self, "_paths", tuple(each for each in compiled if each[0].paths))

    def __str__(self) -> str:
        """Return the rules in the syntax that `parse_scope` reads. Equal rules give equal text."""
        return self._text

    def allows(self, request: RequestInfo) -> bool:
        upstream = request.upstream
        if not request.is_resource:
            return any(
                (not rule.upstreams or upstream in rule.upstreams)
                and (request.of_kubernetes or not rule.of_kubernetes)
                and table.find_url(request.verb, request.path)
                for rule, table in self._paths
            )
        keys = resource_keys(request.resource, request.subresource)
        for rule, table in self._resources:
            if (
                (rule.namespaces is None or request.namespace in rule.namespaces)
                and (not rule.upstreams or upstream in rule.upstreams)
                and table.find(request.verb, request.api_group, keys, request.name)
            ):
                return True
        return False

    def first_beyond(self, other: Scope) -> str:
        """Return the first part of *other* that this scope does not cover; empty if it covers all of it."""
        for rule in other.rules:
            for namespace, upstream in rule.places():
                here = [
                    each
                    for own in self.rules
                    if own.is_for(namespace, upstream) and (rule.of_kubernetes or not own.of_kubernetes)
                    for each in own.policy_rules()
                ]
                missing = rules_not_covered(here, rule.policy_rules())
                if missing:
                    return str(_scope_rule(missing[0], namespace, upstream))
        return ""


def group_and_resource(text: str) -> tuple[str, str]:
    """Return the API group and the resource with its subresource, as in an RBAC rule.

    ``deployments.apps/scale`` gives ``apps`` and ``deployments/scale``. A lone star gives all groups.
    """
    kind, slash, subresource = text.partition("/")
    resource, dot, group = kind.partition(".")
    return group if dot else (ANY if resource == ANY else ""), resource + slash + subresource


def _scope_rule(atom: PolicyRule, namespace: str | None, upstream: str | None) -> ScopeRule:
    """Convert an atomic policy rule to a scope rule."""
    resources: tuple[str, ...] = ()
    if atom.resources:
        kind, slash, subresource = atom.resources[0].partition("/")
        (group,) = atom.api_groups
        has_group = group not in ("", ANY) or (group == ANY) != (kind == ANY)
        resources = (f"{kind}.{group}{slash}{subresource}" if has_group else atom.resources[0],)
    return ScopeRule(
        atom.verbs,
        resources,
        atom.non_resource_urls,
        atom.resource_names,
        None if namespace is None else (namespace,),
        () if upstream is None else (upstream,),
    )


LONGEST_SCOPE = 4096
# Limit on the atoms of all rules together: one verb, resource, name, namespace and upstream each. It bounds the cost of
# comparing two scopes.
MOST_PIECES = 256
_EXAMPLE = 'as in "get,list pods -n shop"'
_VERB = re.compile(r"\*|[a-z][a-z0-9:-]*", re.ASCII)
_RESOURCE = re.compile(
    r"(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?))?(/[^/\s,;]+)?", re.ASCII
)
_LISTED = {"--namespace": "-n", "-n": "-n", "--name": "--name", "--upstream": "--upstream"}
_ALL_NAMESPACES = ("-A", "--all-namespaces")
# Ostiary tokens and JWTs that a user pasted in the wrong place. Object names resemble other secrets too often.
_TOKEN = re.compile(r"os[a-z]_[0-9A-Za-z]{20,}|eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_.-]*")


def holds_token(text: str) -> bool:
    return _TOKEN.search(text) is not None


def parse_scope(text: str) -> Scope:
    """Parse a scope as users write it in ``--can``, in the ``scope`` of a token exchange and on the gateway's page.

        VERBS RESOURCES -n NAMESPACES|-A [--name NAMES] [--upstream NAMES]      get,list pods,deployments.apps -n shop
        VERBS PATHS [--upstream NAMES]                                          get /metrics,/healthz
        discovery [--upstream NAMES]                                            what Kubernetes clients read first

    Semicolons separate several rules. The lists of the result are sorted and without duplicates, so equal rules have
    equal text. Raises `ScopeError`.
    """
    if len(text) > LONGEST_SCOPE:
        raise ScopeError(
            "the scope is too long", cause=f"it has {len(text)} characters, and {LONGEST_SCOPE} are allowed"
        )
    rules = [_Reader(number, part).rule() for number, part in enumerate(text.split(";"), start=1)]
    pieces = sum(
        prod(len(part) or 1 for part in (rule.verbs, rule.resources or rule.paths, rule.names))
        * sum(1 for _ in rule.places())
        for rule in rules
    )
    if pieces > MOST_PIECES:
        raise ScopeError(
            "the scope is too large",
            cause=f"it allows {pieces} different things, and {MOST_PIECES} are allowed",
            hint="use a star, or mint several tokens",
        )
    return Scope(tuple(sorted(set(rules), key=str)))


def scope_of_rules(rules: Sequence[str], *, exact: bool = False) -> Scope:
    """Return the scope of all *rules*, as given with ``--can``; raises `ScopeError`.

    Kubernetes clients need to discover the resources they may use, so `discovery` is added unless *exact* is set.
    """
    scope = parse_scope("; ".join(rules))
    asks_kubernetes = any(rule.resources for rule in scope.rules)
    return scope if exact or not asks_kubernetes else with_discovery(scope)


def with_discovery(scope: Scope) -> Scope:
    """Return *scope* plus `discovery` at the upstreams of its resources; raises `ScopeError` if that is too large."""
    upstreams = [rule.upstreams for rule in scope.rules if rule.resources]
    everywhere = not all(upstreams)
    rule = discovery_rule(() if everywhere else tuple(sorted({name for names in upstreams for name in names})))
    return parse_scope(f"{scope}; {rule}")


class _Reader:
    """Parses one rule. *number* is its position among the rules, counted from one."""

    def __init__(self, number: int, text: str) -> None:
        self._number = number
        self._text = text.strip()
        self._options: dict[str, tuple[str, ...]] = {}
        self._all_namespaces = False

    def rule(self) -> ScopeRule:
        words = self._positional()
        if words == [DISCOVERY]:
            return discovery_rule(self._upstreams_of_paths())
        if len(words) != 2:
            for word in words:
                # A space within a list splits it into two words.
                self._parse_list(word)
            problem = "a rule consists of verbs and resources, or of verbs and paths"
            raise self._error(problem if words else "a rule is empty", words[2] if len(words) > 2 else "")
        verbs, targets = self._verbs(words[0]), self._parse_list(words[1])
        if any(target.startswith("/") for target in targets):
            return ScopeRule(verbs, paths=self._paths(targets), upstreams=self._upstreams_of_paths())
        return self._rule_about_resources(verbs, targets)

    def _upstreams_of_paths(self) -> tuple[str, ...]:
        if self._all_namespaces or self._options.keys() - {"--upstream"}:
            raise self._error("a rule about paths takes no namespace and no name", hint="leave out -n, -A and --name")
        return self._options.get("--upstream", ())

    def _rule_about_resources(self, verbs: tuple[str, ...], resources: tuple[str, ...]) -> ScopeRule:
        for resource in resources:
            self._check_resource(resource)
        namespaces = self._options.get("-n")
        if namespaces is None and not self._all_namespaces:
            raise self._error(
                "the rule names no namespace",
                hint="add -n NAMESPACE, or -A for all namespaces and for what is in none, such as nodes",
            )
        if namespaces is not None and self._all_namespaces:
            raise self._error("-n and -A cannot be combined", hint="leave out -n or -A")
        if ANY in (namespaces or ()):
            raise self._error("a namespace cannot be a pattern", ANY, hint="write -A for all namespaces")
        return ScopeRule(
            verbs,
            resources,
            names=self._options.get("--name", ()),
            namespaces=namespaces,
            upstreams=self._options.get("--upstream", ()),
        )

    def _positional(self) -> list[str]:
        """Return the words that do not belong to an option, and store the options."""
        positional, words = list[str](), iter(self._words())
        for word in words:
            name, equals, value = word.partition("=")
            if word in _ALL_NAMESPACES:
                self._all_namespaces = True
            elif name in _LISTED:
                self._take_option(_LISTED[name], word, value if equals else next(words, ""))
            elif word.startswith("-"):
                raise self._error("unknown option", word, hint="there are -n, -A, --name and --upstream")
            else:
                positional.append(word)
        return positional

    def _take_option(self, name: str, word: str, value: str) -> None:
        if name in self._options:
            raise self._error("duplicate option", word, hint=f"write a list, as in {name} a,b")
        if not value or value.startswith("-"):
            raise self._error("an option has no value", word)
        values = self._parse_list(value)
        for each in values:
            # Sorting could put it first in the list, where it would be parsed as an option.
            if each.startswith("-"):
                raise self._error("a name begins with a dash", each, hint="there are -n, -A, --name and --upstream")
        self._options[name] = values

    def _words(self) -> Iterator[str]:
        for word in self._text.split():
            if holds_token(word):
                # Scopes are written to audit events and quoted in errors, so mask tokens.
                self._text = _TOKEN.sub("***", self._text)
                raise self._error("a word looks like a token")
            if not word.isprintable() or any(quote in word for quote in "\"'\\"):
                raise self._error("invalid character in", word)
            yield word

    def _parse_list(self, word: str) -> tuple[str, ...]:
        values = word.split(",")
        if not all(values):
            raise self._error("a list has an empty entry", word, hint="write a list without blanks, as in a,b")
        return tuple(sorted(set(values)))

    def _verbs(self, word: str) -> tuple[str, ...]:
        verbs = self._parse_list(word)
        for verb in verbs:
            if not _VERB.fullmatch(verb):
                raise self._error("not a verb", verb, hint=f"verbs come first and in lower case, {_EXAMPLE}")
        return (ANY,) if ANY in verbs else verbs

    def _paths(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/"):
                raise self._error("resources and paths cannot be in one rule", path, hint="write two rules")
            if ANY in path[:-1]:
                raise self._error("* is allowed only at the end of a path", path)
        return paths

    def _check_resource(self, resource: str) -> None:
        if resource.endswith("/*"):
            hint = "name the subresource, as in pods/log, or write * for all resources with their subresources"
            raise self._error("a subresource cannot be a pattern", resource, hint=hint)
        if not _RESOURCE.fullmatch(resource):
            raise self._error(
                "not a resource",
                resource,
                hint="write the plural in lower case, as in pods, pods/log or deployments.apps; names go to --name",
            )

    def _error(self, cause: str, word: str = "", *, hint: str = _EXAMPLE) -> ScopeError:
        where = f'rule {self._number}, "{printable(self._text)}"'
        full_cause = f'{cause}: "{printable(word)}"' if word else cause
        return ScopeError("invalid scope", cause=full_cause, where=where, hint=hint)


# Delegation: the layers of scopes of a token and its actors, stored as text in `TokenRecord.delegation`.

MOST_LAYERS = 8
LONGEST_ACTOR = 64
# Separates the actors of a token that was passed on; the first actor comes first.
HANDED_ON = " > "
_VERSION = 1
# Prefix of the reason of every denial by a scope.
BEYOND_SCOPE = "beyond this token's scope"


@dataclass(frozen=True, slots=True)
class Delegation:
    """The restrictions of a scoped token compared with its session.

    `scopes` are the layers. A request must be allowed by every layer, so a token derived from a scoped token can never
    do more than that token. `actor` is who uses the token on behalf of its owner, as named by the owner.
    """

    scopes: tuple[Scope, ...]
    actor: str = ""

    def allows(self, attributes: Attributes) -> bool:
        """Return whether the token may be used for this request. Whether its owner is allowed is up to the policy."""
        return self.layer_that_refuses(attributes.request) is None

    def layer_that_refuses(self, request: RequestInfo) -> Scope | None:
        """Return the first scope that does not allow *request*; None if all allow it."""
        for scope in self.scopes:
            if not scope.allows(request):
                return scope
        # A delegation without layers was not created by us, so deny.
        return None if self.scopes else Scope()

    @property
    def has_names(self) -> bool:
        """Return whether the outcome depends on object names."""
        return any(rule.names for scope in self.scopes for rule in scope.rules)

    def narrow(self, scope: Scope, actor: str = "") -> Delegation:
        """Return this delegation with *scope* as another layer; raises `ScopeError` if *scope* exceeds it.

        Requests beyond this delegation would be denied anyway, but the caller would believe that the token allows them.
        """
        for layer in self.scopes:
            beyond = layer.first_beyond(scope)
            if beyond:
                raise ScopeError(
                    "the scope is wider than this token's own",
                    cause=f'"{beyond}" is not within "{layer}"',
                    hint="a narrowed token can be made narrower only",
                )
        return _check_layers(Delegation(_with_layer(self.scopes, scope), _actor_chain(self.actor, actor)))

    def encode(self) -> str:
        """Return the text that `decode` reads. Equal delegations give equal text."""
        content = {"v": _VERSION, "actor": self.actor, "scopes": [str(scope) for scope in self.scopes]}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    def __str__(self) -> str:
        """Return what the token may be used for: its last scope, which is within all others."""
        return str(self.scopes[-1]) if self.scopes and self.scopes[-1].rules else "nothing"


NOTHING = Delegation((Scope(),))


def narrow(parent: Delegation | None, scope: Scope, actor: str = "") -> Delegation:
    """Return the delegation of a token derived from another one. *parent* is None if that token is not scoped."""
    return Delegation(()).narrow(scope, actor) if parent is None else parent.narrow(scope, actor)


def decode(text: str) -> Delegation:
    """Decode an encoded delegation. Never fails: text that cannot be decoded allows nothing."""
    try:
        content = json.loads(text)
        if set(content) != {"v", "actor", "scopes"} or content["v"] != _VERSION:
            return NOTHING
        return _check_layers(Delegation(tuple(parse_scope(scope) for scope in content["scopes"]), content["actor"]))
    except (ValueError, TypeError, AttributeError, RecursionError, ScopeError):
        return NOTHING


def _with_layer(scopes: tuple[Scope, ...], scope: Scope) -> tuple[Scope, ...]:
    return scopes if scope in scopes else (*scopes, scope)


def _actor_chain(first: str, actor: str) -> str:
    if holds_token(actor):
        # The actor is written to every audit event.
        raise ScopeError("the name of the actor cannot be used", cause="it looks like a token")
    if len(actor) > LONGEST_ACTOR or not actor.isprintable() or ">" in actor or actor != actor.strip():
        raise ScopeError(
            "the name of the actor cannot be used",
            cause=f'"{printable(actor[:LONGEST_ACTOR])}" is too long, or has characters that no name has',
            hint=f"use at most {LONGEST_ACTOR} printable characters, and no >",
        )
    return HANDED_ON.join(filter(None, (first, actor)))


def _check_layers(delegation: Delegation) -> Delegation:
    if not delegation.scopes or not all(scope.rules for scope in delegation.scopes):
        raise ScopeError("invalid scope", cause="it has no rules")
    if len(delegation.scopes) > MOST_LAYERS:
        raise ScopeError("the token was narrowed too often", cause=f"{MOST_LAYERS} times are allowed")
    if not isinstance(delegation.actor, str):
        raise ScopeError("the name of the actor cannot be used")
    return delegation


# Explains scope denials for ``ostiary-gateway explain``.


@dataclass(frozen=True, slots=True)
class ScopeMiss:
    """Why a scope does not allow a request.

    `closest` is the rule that comes closest and `failed` are its conditions that do not hold. Both are empty if no rule
    resembles the request.
    """

    closest: str
    failed: str
    remedy: str


def explain_miss(scope: Scope, request: RequestInfo) -> ScopeMiss:
    """Explain why *scope* does not allow *request*."""
    needed_rule = rule_for(request)
    remedy = f'a token with: --can "{needed_rule}"'
    candidates = [rule for rule in scope.rules if bool(rule.paths) is not request.is_resource]
    misses = [(_failed_conditions(rule, needed_rule), str(rule)) for rule in candidates]
    if not misses:
        return ScopeMiss("", "", remedy)
    failed, closest = min(misses, key=lambda miss: len(miss[0]))
    return ScopeMiss(closest, ", ".join(failed), remedy)


def rule_for(request: RequestInfo) -> ScopeRule:
    """Return the smallest rule that allows *request*."""
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
    """Return the conditions of *rule* that do not hold, each checked independently of the others."""
    if rule.of_kubernetes:
        # Verb and path are those of discovery, but the upstream is not a Kubernetes API.
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
