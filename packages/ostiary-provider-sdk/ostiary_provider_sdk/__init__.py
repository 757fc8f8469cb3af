"""SDK for image credential providers, the programs that the kubelet runs to get credentials for image registries.

    from datetime import timedelta
    from ostiary_provider_sdk import ImageCredentials, ImageRequest, image_provider

    @image_provider
    def main(request: ImageRequest) -> ImageCredentials:
        return ImageCredentials.for_registry("robot", fetch_a_password(), cache=timedelta(minutes=15))

    if __name__ == "__main__":
        main()

`_core` is generated from the source of ostiary when this package is built. Its modules are private.
"""

from ostiary_provider_sdk._core.model import Secret
from ostiary_provider_sdk._core.sdk.image_provider import (
    ImageCredentials,
    ImageProgram,
    ImageRequest,
    image_provider,
)
from ostiary_provider_sdk._core.wire.credential_provider import CacheKeyType

__all__ = ["CacheKeyType", "ImageCredentials", "ImageProgram", "ImageRequest", "Secret", "image_provider"]
