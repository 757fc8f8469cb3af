"""The cedar provider: IAM-style policies in the Cedar language, from ``*.cedar`` files.

    @id("developers-read")
    permit(principal in Group::"dev", action in [Action::"get", Action::"list"], resource in Namespace::"shop");

    forbid(principal, action, resource) when { resource.resource == "secrets" } unless { principal in Group::"ops" };

What a policy can refer to:

| entity | what it is | attributes |
| --- | --- | --- |
| ``User::"alice"`` | the principal, always; in a ``Group`` for each group of the user | ``name``, ``uid`` |
| ``Group::"dev"`` | a group; ``system:authenticated`` holds every authenticated user | |
| ``Action::"get"`` | the verb: get, list, watch, create, ..., or the lower-case method for a path | |
| ``Resource`` | the requested resource, in its ``Namespace`` if it has one; its id means nothing | see below |
| ``Path::"/healthz"`` | the requested path, if it is not a resource's | see below |
| ``Namespace::"shop"`` | a namespace | |

Both kinds of resource have the attributes ``apiGroup``, ``apiVersion``, ``resource``, ``subresource``, ``namespace``,
``name`` and ``path``, all of them strings and empty where they do not apply. ``context.modifier`` is the request's,
``context.upstream`` the name of its upstream, and ``context.capabilities`` the set of capabilities that its object
needs.

A ``permit`` allows. A ``forbid`` denies and takes precedence. If neither applies there is no opinion. Policies are
validated against this schema when they are read, so a misspelt attribute is an error and not a rule that never applies.
If a ``forbid`` fails to evaluate at run time, nothing is allowed.

The engine looks at every policy in a set, so it gets only those whose principal can match the user. Conditions do not
show whether a user has any permission in a namespace. So a denial is hidden only if no permit can apply to the user, or
if the setting ``hide`` is true. A hidden denial is a 404 only if ``authorization.hideDenied`` is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostiary_gateway.providers.cedar.provider import CedarAuthorization

__all__ = ["CedarAuthorization"]


def __getattr__(name: str) -> object:
    """Import the provider on first access: its settings are available even if the Cedar engine is not installed."""
    if name != "CedarAuthorization":
        raise AttributeError(name)
    from ostiary_gateway.providers.cedar.provider import CedarAuthorization

    return CedarAuthorization
