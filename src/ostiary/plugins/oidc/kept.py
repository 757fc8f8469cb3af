"""What is kept of a sign-in for its renewals: the refresh token, and whom it is about. Called by `oidc.identity`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary.plugins.oidc.token_endpoint import ENDED, Tokens


@dataclass(frozen=True, slots=True)
class Kept:
    refresh_token: str = field(repr=False)
    subject: str

    def seal(self) -> Secret:
        return Secret(json.dumps([self.refresh_token, self.subject]))

    @classmethod
    def read(cls, kept: Secret) -> Kept:
        try:
            refresh_token, subject = json.loads(kept.reveal())
            return cls(str(refresh_token), str(subject))
        except (ValueError, TypeError):
            pass
        raise LoginRefused(ENDED, cause="what was kept of the sign-in cannot be read")


def refresh_token_of(tokens: Tokens) -> str:
    """The refresh token that came along; empty if none did."""
    refresh_token = tokens.get("refresh_token")
    return refresh_token if isinstance(refresh_token, str) else ""
