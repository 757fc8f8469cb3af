"""The words of docker's credential helper protocol, for those who speak it on either side.

`docker.store` asks helpers, and `docker.helper` is one. Imports next to nothing: the helper starts at every pull.
"""

from __future__ import annotations

from ostiary.registry.matching.image_name import DOCKER_HUB, OLD_DOCKER_HUB

# The beginning of the name of every helper program.
PREFIX = "docker-credential-"
# How clients name Docker Hub to a helper.
HUB_SERVER = "https://index.docker.io/v1/"
HUB_NAMES = (DOCKER_HUB, OLD_DOCKER_HUB, "registry-1.docker.io")
# The username that says that the secret is an identity token.
TOKEN_USERNAME = "<token>"  # noqa: S105
# What a helper prints when it has nothing.
NOT_FOUND = "credentials not found in native keychain"
