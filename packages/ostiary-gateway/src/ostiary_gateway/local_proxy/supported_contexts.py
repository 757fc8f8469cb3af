"""Check which contexts the proxy can serve, on creation and whenever its kubeconfig is loaded. Pure."""

from __future__ import annotations

from ostiary.errors import ConfigurationError
from ostiary.kubeconfig import Selection
from ostiary.wire.kubeconfig import CONNECT, TOKEN, is_our_program

CODE = "connect-context-unknown"


def check_connectable(selection: Selection) -> None:
    """Raise `ConfigurationError` if requests of this context cannot go through the proxy."""
    plugin, name = selection.user.exec, selection.context_name
    if plugin is not None and is_our_program(plugin.command) and plugin.args[:2] == (CONNECT, TOKEN):
        # The proxy would query itself in a loop.
        raise ConfigurationError(
            f"context {name!r} goes through ostiary connect already",
            cause="its user asks the proxy for a token",
            where=selection.user.place,
            hint="name the context that has the credential itself",
            code=CODE,
        )
    if selection.user.signing is not None:
        # A signature covers a whole request, and the proxy streams bodies.
        raise ConfigurationError(
            f"context {name!r} cannot be used through ostiary connect",
            cause="its requests have to be signed, and the proxy signs none (extension ostiary.dev/request-signing)",
            where=selection.user.place,
            hint="use the context from Python: ostiary.connect() signs its requests",
            code=CODE,
        )
