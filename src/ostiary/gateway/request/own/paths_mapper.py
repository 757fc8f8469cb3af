"""The mapper of the paths that the gateway answers itself: they have the form of Kubernetes' own."""

from __future__ import annotations

from ostiary.interfaces.attributes import RequestLine
from ostiary.model import RequestInfo
from ostiary.wire.request.request_info import request_info


class OwnPathsMapper:
    """Implements `ostiary.interfaces.attributes.AttributesMapper`."""

    def request_info(self, line: RequestLine) -> RequestInfo:
        return request_info(line)

    def long_running(self, info: RequestInfo) -> bool:
        return False
