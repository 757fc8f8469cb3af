"""The settings of the authorization provider ``subject_access_review``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ostiary.core.settings.kinds import FilePath, Flag, Holds, Seconds, Text, Texts, Word

VERSIONS = ("v1", "v1beta1")
TIMEOUT_SECONDS = 8.0
BAD_VERSION = f"the version must be {' or '.join(VERSIONS)}"
BAD_SERVER = "the server must be a https URL"
BAD_SERVER_HINT = "reviews contain user names, and responses grant access"


def _file(doc: str, holds: Holds, unset: str = "none") -> FilePath:
    return FilePath(doc, holds=holds, checked=False, empty="", unset=unset)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReviewSettings:
    server: Annotated[
        str,
        Text("the URL of the API server that is asked", empty="", missing=BAD_SERVER, missing_hint=BAD_SERVER_HINT),
    ]
    version: Annotated[str, Word("of the review", VERSIONS, mistake=BAD_VERSION, hint="", empty="")] = "v1"
    groups: Annotated[
        tuple[str, ...], Texts("the groups that its policy mentions: the server cannot list them", unique=True)
    ] = ()
    hide: Annotated[
        bool, Flag("answer refused reads within a namespace with 404; requires `authorization.hideDenied`")
    ] = False
    timeout: Annotated[float, Seconds("for one review", mistake="the timeout must be greater than zero")] = (
        TIMEOUT_SECONDS
    )
    ca: Annotated[
        Path | None, _file("the authorities of the server (PEM)", Holds.CERTIFICATES, unset="the system's")
    ] = None
    certificate: Annotated[Path | None, _file("a client certificate (PEM)", Holds.CERTIFICATES)] = None
    key: Annotated[Path | None, _file("its key", Holds.SECRET)] = None
    server_name: Annotated[str | None, Text("the name to check in place of the host", empty="", unset="the host")] = (
        None
    )
    token_file: Annotated[Path | None, _file("a token of the gateway's own", Holds.SECRET)] = None
