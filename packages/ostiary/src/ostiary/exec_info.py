"""What an exec plugin is told in ``KUBERNETES_EXEC_INFO``, for plugins with an HTTP client of their own choice.

    from ostiary import exec_info

    info = exec_info.load_from_env()
    endpoint = info.endpoint()              # base_url, ssl_context, proxy, headers

Those who do not want to care about versions, stdout and exit codes either use `ostiary.sdk`.
"""

from ostiary.sdk.exec_info import ClusterEndpoint, ExecInfo, load, load_from_env
from ostiary.wire.client_authentication import ClusterInfo

__all__ = ["ClusterEndpoint", "ClusterInfo", "ExecInfo", "load", "load_from_env"]
