"""The cedar provider: IAM-style policies in the Cedar language, from ``*.cedar`` files.

    @id("developers-read")
    permit(principal in Group::"dev", action in [Action::"get", Action::"list"], resource in Namespace::"shop");

    forbid(principal, action, resource) when { resource.resource == "secrets" } unless { principal in Group::"ops" };

What a policy can speak of:

| entity | what it is | attributes |
| --- | --- | --- |
| ``User::"alice"`` | the principal, always; in a ``Group`` for each group of the user | ``name``, ``uid`` |
| ``Group::"dev"`` | a group; ``system:authenticated`` holds everybody who is known | |
| ``Action::"get"`` | the verb: get, list, watch, create, ..., or the lower-case method for a path | |
| ``Resource`` | what is asked for, in its ``Namespace`` if it has one; its id means nothing | see below |
| ``Path::"/healthz"`` | what is asked for, where the path is no resource's | see below |
| ``Namespace::"shop"`` | a namespace | |

Both kinds of resource have the attributes ``apiGroup``, ``apiVersion``, ``resource``, ``subresource``, ``namespace``,
``name`` and ``path``, all of them text and empty where they do not apply. ``context.modifier`` is the request's,
``context.upstream`` the name of the upstream that it is for, and ``context.capabilities`` the set of what its object
asks for.

A ``permit`` allows, a ``forbid`` denies and outranks it, and where neither applies there is no opinion. Policies are
checked against this schema when they are read, so a misspelt attribute is a mistake and not a rule that never applies.
Should a ``forbid`` still fail while it is evaluated, nothing is allowed.

The engine looks at every policy it is given, so it is given those only that can concern the user, found by what they
say of the principal. Whether a user has any permission in a namespace cannot be known from conditions, so a refusal
is hidden only when no permit can concern the user, or if the setting ``hide`` is true; and
a hidden refusal is a 404 only where ``authorization.hideDenied`` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostiary_gateway.providers.cedar.provider import CedarAuthorization

__all__ = ["CedarAuthorization"]


def __getattr__(name: str) -> object:
    """The provider, imported when it is asked for: its settings are known where the Cedar engine is not installed."""
    if name != "CedarAuthorization":
        raise AttributeError(name)
    from ostiary_gateway.providers.cedar.provider import CedarAuthorization

    return CedarAuthorization
