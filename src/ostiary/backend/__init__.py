"""For a Python API that checks tokens and policy itself, without a gateway in front: the same engine as a library.

    ostiary.asgi, ostiary.wsgi     the middleware, one line for each framework
    Gatekeeper, SyncGatekeeper     the same without a middleware
    Access, SyncAccess, Bearer     what a view is given
    select                         which objects the selectors of a list select

The names below are public; docs/reference/backend.md describes them.
"""

from ostiary.backend.access import Access, SyncAccess
from ostiary.backend.authenticate.bearer import Bearer
from ostiary.backend.gatekeeper import Gatekeeper
from ostiary.backend.sync_gatekeeper import SyncGatekeeper
from ostiary.errors import AccessRefused
from ostiary.wire.request.selecting import select
from ostiary.wire.request.selectors import SelectorError

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
