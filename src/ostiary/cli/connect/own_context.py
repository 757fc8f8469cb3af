"""Contexts that go through ``ostiary connect`` already: the proxy would ask itself for ever. Pure."""

from __future__ import annotations

from ostiary.client.kubeconfig import Selection
from ostiary.errors import ConfigurationError
from ostiary.wire.kubeconfig import CONNECT, TOKEN, is_our_program


def check_not_own(selection: Selection) -> None:
    """Raise `ConfigurationError` if the user of *selection* asks the proxy for its token."""
    plugin = selection.user.exec
    if plugin is None or not is_our_program(plugin.command) or plugin.args[:2] != (CONNECT, TOKEN):
        return
    raise ConfigurationError(
        f"context {selection.context_name!r} goes through ostiary connect already",
        cause="its user asks the proxy for a token",
        where=selection.user.place,
        hint="name the context that has the credential itself",
        code="connect-context-unknown",
    )
