"""``RequestSignature``: what a signing command reads on stdin, and what it prints. Pure.

{"apiVersion": "ostiary.dev/v1", "kind": "RequestSignature",
 "spec": {"method": "POST", "url": "https://...", "headers": [{"name": "Host", "value": "..."}], "body": "<base64>"}}

{"apiVersion": "ostiary.dev/v1", "kind": "RequestSignature",
 "status": {"headers": [{"name": "Signature", "value": "..."}]}}
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

API_VERSION = "ostiary.dev/v1"
KIND = "RequestSignature"


class SignatureRefused(ValueError):
    """What a signing command printed is no signature. The message never quotes it."""


def encode_request(method: str, url: str, headers: Sequence[tuple[str, str]], content: bytes | None) -> bytes:
    """What a signing command is told. *content* is None for a body that is streamed."""
    spec: dict[str, Any] = {
        "method": method,
        "url": url,
        "headers": [{"name": name, "value": value} for name, value in headers],
    }
    spec |= {"streamed": True} if content is None else {"body": b64encode(content).decode("ascii")}
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "spec": spec}).encode() + b"\n"


def decode_signature(stdout: bytes) -> list[tuple[str, str]]:
    """The headers that a signing command adds; raises `SignatureRefused`."""
    try:
        document = json.loads(stdout)
    except (ValueError, RecursionError):
        raise SignatureRefused("what it printed on stdout is not one JSON object") from None
    if not isinstance(document, dict):
        raise SignatureRefused("what it printed on stdout is not one JSON object")
    if document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        raise SignatureRefused(f"its answer is not of apiVersion {API_VERSION} and kind {KIND}")
    status = document.get("status")
    headers = status.get("headers") if isinstance(status, dict) else None
    if not isinstance(headers, list) or not headers:
        raise SignatureRefused("its answer has no status.headers, or none in it")
    return [_pair(header) for header in headers]


def _pair(header: object) -> tuple[str, str]:
    if isinstance(header, dict):
        name, value = header.get("name"), header.get("value")
        if isinstance(name, str) and isinstance(value, str):
            return name, value
    raise SignatureRefused("a header of its answer has no name and value that are strings")
