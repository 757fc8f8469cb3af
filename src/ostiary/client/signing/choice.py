"""Which signer a connection has: the program's own, or the command that the kubeconfig's user names."""

from __future__ import annotations

import logging

from ostiary.client.exec.plugin import ExecSettings
from ostiary.client.kubeconfig import User
from ostiary.client.signing.command import SigningCommand
from ostiary.client.signing.request import RequestSigner
from ostiary.errors import ConfigurationError

log = logging.getLogger("ostiary.client")


def check_signer(signer: object) -> None:
    """Raise `ConfigurationError` for what cannot sign."""
    if signer is None or (isinstance(signer, RequestSigner) and not isinstance(signer, type)):
        return
    raise ConfigurationError(
        f"{signer.__name__ if isinstance(signer, type) else type(signer).__name__} cannot be used as a request signer",
        cause="it is a class, or it has no method sign(request)",
        hint="pass an object whose sign(request) returns the headers to add",
    )


def signer_for(
    user: User, signer: RequestSigner | None, *, has_own_source: bool, settings: ExecSettings
) -> RequestSigner | None:
    """The signer of the program, else the command of *user*.

    Not if the program has a source of its own: the command would be told a credential that is not the kubeconfig's.
    """
    if user.signing is None:
        return signer
    if signer is not None or has_own_source:
        own = "a signer" if signer is not None else "a source"
        log.warning("the signing command of user %r is not used: the program brings %s of its own", user.name, own)
        return signer
    return SigningCommand.from_config(
        user.signing,
        policy=settings.policy,
        seconds=settings.seconds,
        clean_environment=settings.clean_environment,
    )
