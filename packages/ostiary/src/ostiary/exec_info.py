"""Read ``KUBERNETES_EXEC_INFO``, for exec plugins with an HTTP client of their own.

    from ostiary import exec_info

    info = exec_info.load_from_env()
    endpoint = info.endpoint()              # base_url, ssl_context, proxy, headers

`ostiary.sdk` also handles versions, stdout and exit codes.
"""

from ostiary.sdk.exec_info import ClusterEndpoint, ExecInfo, load, load_from_env
from ostiary.wire.client_authentication import ClusterInfo

__all__ = ["ClusterEndpoint", "ClusterInfo", "ExecInfo", "load", "load_from_env"]
