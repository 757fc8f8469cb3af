"""Middleware and a library for Python APIs that authenticate and authorize requests themselves, without the proxy.

    ostiary_gateway.middleware.asgi, ostiary_gateway.middleware.wsgi     the middleware, one line for each framework
    Gatekeeper, SyncGatekeeper     check requests without a middleware
    Access, SyncAccess, Bearer     passed to views
    select                         filter objects by the selectors of a list request

These names are public; see docs/reference/backend.md.
"""

from ostiary.errors import AccessRefused
from ostiary_gateway.middleware.access import Access, SyncAccess
from ostiary_gateway.middleware.bearer import Bearer
from ostiary_gateway.middleware.gatekeeper import Gatekeeper
from ostiary_gateway.middleware.sync_gatekeeper import SyncGatekeeper
from ostiary_gateway.wire.selectors import SelectorError, select

__all__ = [
    "Access",
    "AccessRefused",
    "Bearer",
    "Gatekeeper",
    "SelectorError",
    "SyncAccess",
    "SyncGatekeeper",
    "select",
]
