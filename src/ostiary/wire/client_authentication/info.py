"""What a client tells an exec plugin: written byte for byte as client-go does, and read by the plugin. Pure."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostiary.errors import ConfigurationError
from ostiary.wire.client_authentication.versions import (
    API_VERSIONS,
    INFO_VARIABLE,
    KIND,
    PROPOSAL_INFO_KIND,
    TYPE_NAMES,
    V1ALPHA1,
)
from ostiary.wire.codec.go_json import go_json


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster as a plugin is told of it (``spec.cluster``)."""

    server: str
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority_data: bytes = b""
    # A proxy's address may hold a password.
    proxy_url: str = field(default="", repr=False)
    disable_compression: bool = False
    config: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ExecCredentialSpec:
    """What ``KUBERNETES_EXEC_INFO`` holds. `rejection` is (status, headers) of the 401, for v1alpha1.

    `as_proposed` tells that it is written as the flat ``ExecInfo`` of the 2018 proposal.
    """

    api_version: str
    interactive: bool
    cluster: ClusterInfo | None = None
    rejection: tuple[int, Mapping[str, Sequence[str]]] | None = None
    as_proposed: bool = False


# --- as the client writes it ---


def encode_info(info: ExecCredentialSpec) -> str:
    """The JSON of *info*, byte for byte as client-go writes it, with its newline."""
    if info.as_proposed:
        fields = {"kind": PROPOSAL_INFO_KIND, "apiVersion": info.api_version, **_alpha_fields(info)}
    elif info.api_version == V1ALPHA1:
        fields = {"kind": KIND, "apiVersion": info.api_version, "spec": _alpha_fields(info)}
    else:
        spec: dict[str, Any] = {} if info.cluster is None else {"cluster": _cluster_fields(info.cluster)}
        fields = {
            "kind": KIND,
            "apiVersion": info.api_version,
            "spec": {**spec, "interactive": info.interactive},
        }
    return go_json(fields) + "\n"


def _alpha_fields(info: ExecCredentialSpec) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if info.rejection is not None:
        status, headers = info.rejection
        fields["response"] = {
            "header": {name: list(values) for name, values in sorted(headers.items())},
            "code": status,
        }
    if info.interactive:
        fields["interactive"] = True
    return fields


def _cluster_fields(cluster: ClusterInfo) -> dict[str, Any]:
    optional = {
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": b64encode(cluster.certificate_authority_data).decode("ascii"),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
    }
    present = {name: value for name, value in optional.items() if value}
    return {"server": cluster.server, **present, "config": _key_sorted(cluster.config)}


def _key_sorted(value: Any) -> Any:
    # kubectl reads every kubeconfig by way of Go maps, so an extension reaches the plugin with sorted keys.
    if isinstance(value, dict):
        return {key: _key_sorted(value[key]) for key in sorted(value)}
    return [_key_sorted(item) for item in value] if isinstance(value, list) else value


# --- as the plugin reads it ---


def decode_info(text: str) -> ExecCredentialSpec:
    """Read what a client told a plugin; raises `ConfigurationError` when it cannot be understood.

    Absent fields have the meaning that client-go gives them: clients other than it leave some out.
    """
    fields = _info_object(text)
    version, kind = fields.get("apiVersion"), fields.get("kind")
    as_proposed = kind == PROPOSAL_INFO_KIND and version == V1ALPHA1
    if version not in API_VERSIONS:
        raise _unusable_info("its apiVersion is not known", hint=f"use one of {', '.join(API_VERSIONS)}")
    if kind != KIND and not as_proposed:
        raise _unusable_info(f"it is not of kind {KIND}")
    spec = fields if as_proposed else _field(fields, "spec", dict, {})
    cluster = _field(spec, "cluster", dict, None)
    response = _field(spec, "response", dict, None) if version == V1ALPHA1 else None
    return ExecCredentialSpec(
        version,
        interactive=_field(spec, "interactive", bool, False),
        cluster=None if cluster is None else _cluster(cluster),
        rejection=None if response is None else _rejection(response),
        as_proposed=as_proposed,
    )


def _number(text: str) -> int | float:
    """Go writes a negative zero as ``-0``; as an integer it would lose its sign."""
    return -0.0 if text == "-0" else int(text)


def _info_object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text, parse_int=_number)
    except (ValueError, RecursionError):
        raise _unusable_info("it is not JSON") from None
    if not isinstance(fields, dict):
        raise _unusable_info("it is not a JSON object")
    return fields


def _cluster(fields: dict[str, Any]) -> ClusterInfo:
    try:
        authority = b64decode(_field(fields, "certificate-authority-data", str, ""), validate=True)
    except (binascii.Error, ValueError):
        raise _unusable_info("certificate-authority-data is not base64") from None
    return ClusterInfo(
        server=_field(fields, "server", str, ""),
        tls_server_name=_field(fields, "tls-server-name", str, ""),
        insecure_skip_tls_verify=_field(fields, "insecure-skip-tls-verify", bool, False),
        certificate_authority_data=authority,
        proxy_url=_field(fields, "proxy-url", str, ""),
        disable_compression=_field(fields, "disable-compression", bool, False),
        config=fields.get("config"),
    )


def _rejection(response: dict[str, Any]) -> tuple[int, Mapping[str, Sequence[str]]]:
    headers = _field(response, "header", dict, {})
    names = {name: tuple(map(str, _field(headers, name, list, []))) for name in headers}
    return _field(response, "code", int, 0), names


def _field(fields: dict[str, Any], name: str, kind: type, absent: Any) -> Any:
    value = fields.get(name)
    if value is None:
        return absent
    # type, not isinstance: to Python a boolean is a number too.
    if type(value) is not kind:
        raise _unusable_info(f"{name} is not {TYPE_NAMES[kind]}")
    return value


def _unusable_info(cause: str, *, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        f"{INFO_VARIABLE} cannot be used",
        cause=cause,
        hint=hint or "a Kubernetes client sets it; to try a plugin by hand: ostiary exec check COMMAND",
        code="exec-info-missing",
    )
