"""What makes a token less than its session: the scopes that it was narrowed to, one after another, and who uses it.

Kept as text in the record of the token (`TokenRecord.delegation`). Narrowing adds a layer, and a request must fit every
layer, so a token that was made from a narrowed one can never do more than that one. Pure.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ostiary.core.delegation.parsing import holds_token, parse_scope
from ostiary.core.delegation.scope import Scope
from ostiary.core.text import printable
from ostiary.errors import ScopeError
from ostiary.model import Attributes, RequestInfo

MOST_LAYERS = 8
LONGEST_ACTOR = 64
# Between the actors of a token that was handed on: who got it first stands first.
HANDED_ON = " > "
_VERSION = 1
# What the reason of every refusal by a scope begins with.
BEYOND_SCOPE = "beyond this token's scope"


@dataclass(frozen=True, slots=True)
class Delegation:
    """`scopes` are the layers. `actor` is who uses the token on behalf of its owner, as its owner named it."""

    scopes: tuple[Scope, ...]
    actor: str = ""

    def allows(self, attributes: Attributes) -> bool:
        """Whether the token may be used for this. Whether its owner may do it, the policy says."""
        return self.layer_that_refuses(attributes.request) is None

    def layer_that_refuses(self, request: RequestInfo) -> Scope | None:
        """The first scope that does not have *request*; None if all have it."""
        for scope in self.scopes:
            if not scope.allows(request):
                return scope
        # Without layers it is no delegation that we made.
        return None if self.scopes else Scope()

    @property
    def has_names(self) -> bool:
        """Whether what it refuses depends on the names of objects."""
        return any(rule.names for scope in self.scopes for rule in scope.rules)

    def narrow(self, scope: Scope, actor: str = "") -> Delegation:
        """This and *scope* besides; raises `ScopeError` if *scope* asks for what this does not have.

        The request would be refused whenever it matters, but whoever asked would believe to have it.
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
        """As `decode` reads it: the same text for the same delegation."""
        content = {"v": _VERSION, "actor": self.actor, "scopes": [str(scope) for scope in self.scopes]}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    def __str__(self) -> str:
        """What the token may be used for: its last scope, which is within all others."""
        return str(self.scopes[-1]) if self.scopes and self.scopes[-1].rules else "nothing"


NOTHING = Delegation((Scope(),))


def narrow(parent: Delegation | None, scope: Scope, actor: str = "") -> Delegation:
    """The delegation of a token that is made with another: *parent* is that one's, None if it has all its owner's."""
    return Delegation(()).narrow(scope, actor) if parent is None else parent.narrow(scope, actor)


def decode(text: str) -> Delegation:
    """The delegation that was encoded. It never fails: what cannot be read allows nothing."""
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
        # It is written into every audit event.
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
