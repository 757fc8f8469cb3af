"""For a Python API that checks tokens and policy itself, without a gateway in front: the same engine as a library.

    ostiary_gateway.middleware.asgi, ostiary_gateway.middleware.wsgi     the middleware, one line for each framework
    Gatekeeper, SyncGatekeeper     the same without a middleware
    Access, SyncAccess, Bearer     what a view is given
    select                         which objects the selectors of a list select

The names below are public; docs/reference/backend.md describes them.
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
