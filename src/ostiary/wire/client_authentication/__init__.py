"""``client.authentication.k8s.io``: what a client tells an exec plugin, and what the plugin answers.

Three shipped versions, and the dialect of the 2018 proposal that v1alpha1 grew out of. Pure; used by the client,
by the SDK for plugins, by ``ostiary get-token`` and by the checks.
"""

from __future__ import annotations

from ostiary.wire.client_authentication.answer import AnswerRefused, ExecAnswer, encode_answer
from ostiary.wire.client_authentication.answer_reading import answer_fields, decode_answer, refusals
from ostiary.wire.client_authentication.info import ClusterInfo, ExecCredentialSpec, decode_info, encode_info
from ostiary.wire.client_authentication.versions import (
    API_VERSIONS,
    INFO_VARIABLE,
    PROPOSAL_ANSWER_KIND,
    V1,
    V1ALPHA1,
    V1BETA1,
)

__all__ = [
    "API_VERSIONS",
    "INFO_VARIABLE",
    "PROPOSAL_ANSWER_KIND",
    "V1",
    "V1ALPHA1",
    "V1BETA1",
    "AnswerRefused",
    "ClusterInfo",
    "ExecAnswer",
    "ExecCredentialSpec",
    "answer_fields",
    "decode_answer",
    "decode_info",
    "encode_answer",
    "encode_info",
    "refusals",
]
