"""The mapper ``kubernetes``: requests to a Kubernetes API server, or to anything that has its paths.

Chosen by an upstream's ``attributes: kubernetes``, which is the default. With ``capabilities`` some fields of objects
need a right of their own (`plugins.kubernetes.capabilities`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.interfaces.attributes import ObjectCapabilities, RequestContent, RequestLine
from ostiary.model import RequestInfo
from ostiary.plugins.kubernetes.capabilities import CapabilityRules
from ostiary.plugins.kubernetes.settings import KubernetesAttributesSettings
from ostiary.wire.request.object_names import split_name
from ostiary.wire.request.request_info import long_running, request_info

_TERMINALS = frozenset(("exec", "attach", "portforward"))


class KubernetesAttributes:
    reads_kubernetes_paths = True
    split_name = staticmethod(split_name)
    # A pod or its template has some kilobytes.
    largest_body = 256 * 1024

    def __init__(self, capabilities: CapabilityRules | None = None) -> None:
        self._capabilities = capabilities

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        capabilities = read_settings(KubernetesAttributesSettings, fields, context.directory).capabilities
        if capabilities is None or not fields.is_right("capabilities"):
            return cls()
        return cls(capabilities.rules())

    def request_info(self, line: RequestLine) -> RequestInfo:
        return request_info(line)

    def long_running(self, info: RequestInfo) -> bool:
        return long_running(info)

    @property
    def reads_bodies(self) -> bool:
        return self._capabilities is not None

    def in_body_of(self, info: RequestInfo) -> bool:
        return self._capabilities is not None and self._capabilities.cover(info)

    def capabilities_of(self, info: RequestInfo, content: RequestContent) -> ObjectCapabilities:
        assert self._capabilities is not None, "it covers the request"
        return self._capabilities.read(info, content)

    def in_doubt(self, info: RequestInfo, doubt: str) -> ObjectCapabilities:
        assert self._capabilities is not None, "it covers the request"
        return self._capabilities.in_doubt(info, doubt)

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """A terminal opened with GET, as WebSockets must be, needs what opening it with POST does.

        Otherwise somebody who may only read could run commands. Kubernetes asks this of WebSockets since 1.35; here
        it holds for every GET, because these subresources serve nothing but upgrades.
        """
        if info.verb != "get" or info.subresource not in _TERMINALS or info.resource != "pods" or info.api_group:
            return None
        return replace(info, verb="create")
