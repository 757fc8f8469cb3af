"""The mapper ``kubernetes``: requests to a Kubernetes API server, or to anything that has its paths.

Chosen by an upstream's ``attributes: kubernetes``, which is the default. It has no settings.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.config import Fields
from ostiary.interfaces.attributes import RequestLine
from ostiary.model import RequestInfo
from ostiary.wire.request.request_info import long_running, request_info

_TERMINALS = frozenset(("exec", "attach", "portforward"))


class KubernetesAttributes:
    reads_kubernetes_paths = True

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        return cls()

    def request_info(self, line: RequestLine) -> RequestInfo:
        return request_info(line)

    def long_running(self, info: RequestInfo) -> bool:
        return long_running(info)

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """A terminal opened with GET, as WebSockets must be, needs what opening it with POST does.

        Otherwise somebody who may only read could run commands. Kubernetes asks this of WebSockets since 1.35; here
        it holds for every GET, because these subresources serve nothing but upgrades.
        """
        if info.verb != "get" or info.subresource not in _TERMINALS or info.resource != "pods" or info.api_group:
            return None
        return replace(info, verb="create")
