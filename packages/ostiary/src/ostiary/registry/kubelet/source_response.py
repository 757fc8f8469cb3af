"""Parsing the responses of sources of ``ostiary-credential-provider``, and errors if there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ostiary.core.text import printable
from ostiary.errors import AnswerInvalid


def json_object(data: bytes) -> Mapping[str, object]:
    """Return the JSON object in *data*; an empty one if there is none."""
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def no_credential(image: str) -> str:
    return f'no credential for image "{printable(image)}"'


def identity_token_error(image: str) -> AnswerInvalid:
    return AnswerInvalid(
        no_credential(image),
        cause="the login is an identity token, and the kubelet's protocol has only usernames and passwords",
        hint="use a username and a password, or an access token in place of the password",
        code="docker-helper-answer-invalid",
    )
