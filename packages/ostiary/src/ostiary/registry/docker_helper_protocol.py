"""Constants of docker's credential helper protocol, for both sides.

`docker_store` calls helpers, and `docker_helper` is one. Imports next to nothing: the helper starts on every pull.
"""

from __future__ import annotations

from ostiary.registry.image_name import DOCKER_HUB, OLD_DOCKER_HUB, parse_image_name

# The prefix of the name of every helper program.
PREFIX = "docker-credential-"
# Docker Hub in requests to helpers.
HUB_SERVER = "https://index.docker.io/v1/"
HUB_NAMES = (DOCKER_HUB, OLD_DOCKER_HUB, "registry-1.docker.io")
# The username that marks the secret as an identity token.
TOKEN_USERNAME = "<token>"  # noqa: S105
# What a helper prints when it has no credentials.
NOT_FOUND = "credentials not found in native keychain"
# Clients pass a registry to their helpers, and no image.
ANY_IMAGE = "any/image"


def image_of(server: str) -> str | None:
    """Return an image of the registry that *server* names: a URL, a host, or already a repository.

    None for a host that no image name can have, such as ``build-server``: that name would be parsed as one of Docker
    Hub's, and Docker Hub's credential must not be sent to another host.
    """
    address = server.partition("://")[2] or server
    authority, _, path = address.partition("/")
    if any(character in authority for character in "?#\\"):
        # Other parsers end the host there and would see another host.
        return None
    # A URL may have a username before its host.
    host = authority.rpartition("@")[2]
    if f"{path}/".startswith(("v1/", "v2/")):
        path = f"{path}/"[3:]
    domain = DOCKER_HUB if host in HUB_NAMES else host
    image = f"{domain}/{path.strip('/') or ANY_IMAGE}"
    return image if parse_image_name(image).domain == domain else None
