"""The files by which Kubernetes clients in a container find a token: ``token``, ``ca.crt`` and ``namespace``.

Each file is replaced as a whole: a client that reads at this moment gets the old one or the new one. The token has no
line end, because some clients send the file as it is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ostiary.cli.agent.keeper import HeldToken
from ostiary.cli.replaced_file import replace_file, unwritable

TOKEN, AUTHORITY, NAMESPACE = "token", "ca.crt", "namespace"  # a file's name
FOLDER_MODE = 0o700


@dataclass(frozen=True, slots=True)
class TokenFolder:
    """`mode` is that of the token alone; the other files hold no secret."""

    path: str
    mode: int = 0o600
    authorities_pem: str | None = None
    namespace: str = ""

    def prepare(self) -> None:
        """Make the folder if there is none, and write what does not change."""
        try:
            os.makedirs(self.path, FOLDER_MODE, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        if self.authorities_pem:
            replace_file(os.path.join(self.path, AUTHORITY), self.authorities_pem, 0o644)
        if self.namespace:
            replace_file(os.path.join(self.path, NAMESPACE), self.namespace, 0o644)

    def write(self, held: HeldToken) -> None:
        replace_file(os.path.join(self.path, TOKEN), held.token.reveal(), self.mode)
