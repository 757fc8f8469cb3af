"""``ostiary connect token NAME`` when asking the running proxy was not enough: start it, or say what is wrong.

Called by the command after `quick_token` has printed nothing. Stdout is for the credential alone.
"""

from __future__ import annotations

import os
import sys

from ostiary.cli.connect import quick_token
from ostiary.cli.connect.start import ask_or_start, content_of
from ostiary.errors import ConfigurationError
from ostiary.wire.client_authentication import INFO_VARIABLE, V1, decode_info

_SPOKEN = ("v1", "v1beta1")


def print_token(name: str) -> int:
    """Raises `OstiaryError`; what it says is all that a person behind kubectl sees."""
    if quick_token.failure is not None:
        content_of(quick_token.failure)
    text = os.environ.get(INFO_VARIABLE)
    version = (decode_info(text).api_version if text else V1).rpartition("/")[2]
    if version not in _SPOKEN:
        raise ConfigurationError(
            "the client asks for a version of the exec API that is not spoken here",
            cause=f"it asks for {version}",
            hint="set apiVersion: client.authentication.k8s.io/v1 in the kubeconfig",
            code="exec-info-missing",
        )
    if not quick_token.is_name(name):
        raise ConfigurationError("this cannot be the name of a context", code="connect-context-unknown")
    sys.stdout.write(ask_or_start(f"token {version} {name}").decode())
    return 0
