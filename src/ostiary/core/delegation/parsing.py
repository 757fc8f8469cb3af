"""Reads what a token may be used for, as a person writes it. Pure.

    VERBS RESOURCES -n NAMESPACES|-A [--name NAMES] [--upstream NAMES]      get,list pods,deployments.apps -n shop
    VERBS PATHS [--upstream NAMES]                                          get /metrics,/healthz
    discovery [--upstream NAMES]                                            what clients of Kubernetes read first

Several rules are separated by semicolons. Called for ``--can``, for the ``scope`` of a token exchange, and by the
gateway's page. Lists are sorted and without repetition in what is returned, so equal rules have equal texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import prod

from ostiary.core.delegation.scope import DISCOVERY, Scope, ScopeRule, discovery_rule
from ostiary.core.rules import ANY
from ostiary.core.text import printable
from ostiary.errors import ScopeError

LONGEST_SCOPE = 4096
# The smallest pieces of all rules together: one verb, resource, name, namespace and upstream each. They bound what it
# costs to compare two scopes.
MOST_PIECES = 256
_EXAMPLE = 'as in "get,list pods -n shop"'
_VERB = re.compile(r"\*|[a-z][a-z0-9:-]*", re.ASCII)
_RESOURCE = re.compile(
    r"(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)(\.(\*|[a-z0-9]([-a-z0-9.]*[a-z0-9])?))?(/[^/\s,;]+)?", re.ASCII
)
_LISTED = {"--namespace": "-n", "-n": "-n", "--name": "--name", "--upstream": "--upstream"}
_ALL_NAMESPACES = ("-A", "--all-namespaces")
# Ours, and JWTs: what somebody may paste in the wrong place. Names of objects look like other secrets too often.
_TOKEN = re.compile(r"os[a-z]_[0-9A-Za-z]{20,}|eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_.-]*")


def holds_token(text: str) -> bool:
    return _TOKEN.search(text) is not None


def parse_scope(text: str) -> Scope:
    """The scope that *text* describes; raises `ScopeError`."""
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
    """The scope of all *rules*, as ``--can`` of a command means them; raises `ScopeError`.

    Whoever may use resources of Kubernetes needs to find out which there are, so `discovery` is added unless the rules
    are to be *exact*.
    """
    scope = parse_scope("; ".join(rules))
    asks_kubernetes = any(rule.resources for rule in scope.rules)
    return scope if exact or not asks_kubernetes else with_discovery(scope)


def with_discovery(scope: Scope) -> Scope:
    """*scope* and `discovery`, at the upstreams where it has resources; raises `ScopeError` if that is too large."""
    upstreams = [rule.upstreams for rule in scope.rules if rule.resources]
    everywhere = not all(upstreams)
    rule = discovery_rule(() if everywhere else tuple(sorted({name for names in upstreams for name in names})))
    return parse_scope(f"{scope}; {rule}")


class _Reader:
    """Reads one rule. *number* is its place among the others, counted from one."""

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
                # A blank within a list makes two words of it.
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
        """The words that belong to no option; the options are kept."""
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
            # Sorted, it could come first in the list, where it would be read as an option.
            if each.startswith("-"):
                raise self._error("a name begins with a dash", each, hint="there are -n, -A, --name and --upstream")
        self._options[name] = values

    def _words(self) -> Iterator[str]:
        for word in self._text.split():
            if holds_token(word):
                # A scope is written into audit events, and errors quote it.
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
