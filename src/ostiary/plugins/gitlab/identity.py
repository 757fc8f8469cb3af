"""People sign in with GitLab: `oidc`, with what GitLab does in its own way.

    identity: [{name: staff, type: gitlab, url: https://gitlab.example.com, clientID: ..., clientSecretFile: ...}]

GitLab says who somebody is and all of their groups at its UserInfo endpoint; the groups that somebody is a direct
member of stand in the ID token alone. Groups are full paths: ``acme/platform``. Whoever is in no group has an empty
list, so a claim that is missing is an error and nobody without groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused, ProviderError
from ostiary.interfaces.identity import Produces
from ostiary.model import UserInfo
from ostiary.plugins.gitlab.settings import DIRECT, EMAIL, SUB, GitLabSettings
from ostiary.plugins.oidc.claims import ClaimNames
from ostiary.plugins.oidc.named_issuer import NamedIssuerIdentity, check_url


@dataclass(frozen=True, slots=True)
class GitLabClaims:
    username: str
    direct: bool
    allowed_groups: frozenset[str] | None

    @property
    def _names(self) -> ClaimNames:
        return ClaimNames(username=self.username, uid=SUB, groups="groups_direct" if self.direct else "groups")

    def user(self, claims: Mapping[str, object], id_token: Mapping[str, object]) -> UserInfo:
        names = self._names
        groups = (id_token if self.direct else claims).get(names.groups)
        if groups is None:
            raise ProviderError(
                "the groups of this user are unknown",
                cause=f'GitLab leaves out the claim "{names.groups}"',
                hint="the application needs the scope openid; groups: direct needs GitLab 14.2",
            )
        user = names.user({**claims, names.groups: groups})
        if self.allowed_groups is not None and not self.allowed_groups & set(user.groups):
            raise LoginRefused("your GitLab account is not a member of an allowed group", cause="no membership")
        return user

    def produces(self) -> Produces:
        return self._names.produces()


class GitLabIdentity(NamedIssuerIdentity):
    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(GitLabSettings, fields, context.directory)
        allowed = settings.allowed_groups
        return cls.build(
            settings,
            fields,
            context,
            issuer=check_url(settings.url, fields, "url"),
            claims=GitLabClaims(
                settings.username, settings.groups == DIRECT, None if allowed is None else frozenset(allowed)
            ),
            # With `openid` alone the address would be the one that people choose to show.
            scopes=(EMAIL,) if settings.username == EMAIL else (),
            user_info=True,
        )
