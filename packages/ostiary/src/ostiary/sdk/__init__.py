"""The SDK for plugins: everything except the call to the identity provider.

An exec credential plugin, run by a Kubernetes client:

    from datetime import timedelta
    from ostiary.sdk import ExecInfo, Token, exec_plugin

    @exec_plugin
    def main(info: ExecInfo) -> Token:
        return Token(fetch_a_token(), expires_in=timedelta(minutes=15))

    if __name__ == "__main__":
        main()

An image credential provider, run by the kubelet:

    from ostiary.sdk import ImageCredentials, ImageRequest, image_provider

    @image_provider
    def main(request: ImageRequest) -> ImageCredentials:
        return ImageCredentials.for_registry("robot", fetch_a_password(), cache=timedelta(minutes=15))

The decorators handle API versions, encoding, a clean stdout, readable errors and the exit code.
"""

from ostiary.sdk.decorator import Certificate, Program, SignInRefused, Token, exec_plugin
from ostiary.sdk.exec_info import ExecInfo
from ostiary.sdk.image_provider import ImageCredentials, ImageProgram, ImageRequest, image_provider
from ostiary.wire.client_authentication import ClusterInfo

# Imported eagerly: the function `image_provider` has the name of its module, and importing the module first would bind
# the module instead of the function.
__all__ = [
    "Certificate",
    "ClusterInfo",
    "ExecInfo",
    "ImageCredentials",
    "ImageProgram",
    "ImageRequest",
    "Program",
    "SignInRefused",
    "Token",
    "exec_plugin",
    "image_provider",
]
