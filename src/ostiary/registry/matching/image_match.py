"""Does a pattern match an image? Exactly the kubelet's answer, and the first reason when it is no.

    pattern, target  ->  ports equal?  ->  as many labels?  ->  each label?  ->  path a prefix?

Pure. The same rules hold for ``matchImages`` and for the keys of an answer. In the dialect of the first proposal the
port counts only if the pattern has one: *any_port*. A target is the repository of a normalised image
(`image_name`). `matches` judges one pattern and `why_not` explains it; `pattern_index` does the same for thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from ostiary.core.text import printable
from ostiary.registry.matching.go_url import ImageAddress, UnparsableAddress, parse_address
from ostiary.registry.matching.label_glob import is_valid_glob, label_matches

Text = str | bytes


class Reason(Enum):
    """Why a pattern does not match, in the order in which it is found out."""

    PATTERN_UNPARSABLE = "pattern-unparsable"
    IMAGE_UNPARSABLE = "image-unparsable"
    PORTS_DIFFER = "ports-differ"
    LABEL_COUNT_DIFFERS = "label-count-differs"
    LABEL_DIFFERS = "label-differs"
    PATH_NOT_PREFIX = "path-not-prefix"
    STAR_IN_PATH = "star-in-path"


@dataclass(frozen=True, slots=True)
class Mismatch:
    reason: Reason
    message: str
    hint: str | None = None


def matches(pattern: Text, target: Text, *, any_port: bool = False) -> bool:
    """Whether the kubelet would say that *pattern* matches *target*. What cannot be parsed matches nothing.

    *any_port*: a pattern without a port matches images with any.
    """
    return why_not(pattern, target, any_port=any_port) is None


def why_not(pattern: Text, target: Text, *, any_port: bool = False) -> Mismatch | None:
    """The first reason why *pattern* does not match *target*; None if it does."""
    try:
        glob = parse_address(pattern)
    except UnparsableAddress as error:
        hint = "only * in the host stands for something else; a port is written in digits"
        return Mismatch(Reason.PATTERN_UNPARSABLE, f"the pattern cannot be parsed: {error}", hint)
    try:
        image = parse_address(target)
    except UnparsableAddress as error:
        hint = "normalise the name of the image first, and leave out its tag"
        return Mismatch(Reason.IMAGE_UNPARSABLE, f"the image cannot be parsed: {error}", hint)
    if any_port and not glob.port:
        glob, image = without_port(glob), without_port(image)
    return _ports_mismatch(glob, image) or _host_mismatch(glob, image) or _path_mismatch(glob, image)


def without_port(address: ImageAddress) -> ImageAddress:
    """*address* as if it had no port. What has none keeps the brackets of an IPv6 address; here they are taken off."""
    labels = address.labels
    if not address.port and address.host.startswith(b"[") and address.host.endswith(b"]"):
        labels = tuple(address.host[1:-1].split(b"."))
    return replace(address, labels=labels, port=b"")


def _ports_mismatch(glob: ImageAddress, image: ImageAddress) -> Mismatch | None:
    if glob.port == image.port:
        return None
    message = f"the ports differ: the pattern has {_port(glob)} and the image has {_port(image)}"
    return Mismatch(Reason.PORTS_DIFFER, message, "a pattern without a port matches only images without a port")


def _host_mismatch(glob: ImageAddress, image: ImageAddress) -> Mismatch | None:
    in_pattern, in_image = len(glob.labels), len(image.labels)
    if in_pattern != in_image:
        message = f"the numbers of labels differ: {in_pattern} in the pattern's host and {in_image} in the image's"
        return Mismatch(Reason.LABEL_COUNT_DIFFERS, message, _label_count_hint(glob, image))
    for number, (label_glob, label) in enumerate(zip(glob.labels, image.labels, strict=True), 1):
        if not is_valid_glob(label_glob):
            message = f"label {number} of the host is not a valid pattern: {_quote(label_glob)}"
            return Mismatch(Reason.PATTERN_UNPARSABLE, message, _label_hint(label_glob, label))
        if not label_matches(label_glob, label):
            message = f"label {number} of the host differs: {_quote(label_glob)} does not match {_quote(label)}"
            return Mismatch(Reason.LABEL_DIFFERS, message, _label_hint(label_glob, label))
    return None


def _path_mismatch(glob: ImageAddress, image: ImageAddress) -> Mismatch | None:
    if image.path.startswith(glob.path):
        return None
    message = f"the pattern's path {_quote(glob.path)} is not how the image's path {_quote(image.path)} begins"
    if b"*" in glob.path:
        star_hint = "a * in a path stands for itself: end the pattern before it, paths match as prefixes"
        return Mismatch(Reason.STAR_IN_PATH, message, star_hint)
    slash_hint = "leave out the slash at the end" if image.path == glob.path.removesuffix(b"/") else None
    return Mismatch(Reason.PATH_NOT_PREFIX, message, slash_hint)


def _label_count_hint(glob: ImageAddress, image: ImageAddress) -> str | None:
    if glob.labels in ((b"http",), (b"https",)):
        return "leave out the scheme: a pattern begins with the host"
    if image.labels == (b"docker", b"io") and glob.labels[1:] == image.labels:
        return "images of Docker Hub are looked up as docker.io"
    return "a * stands for one label: *.* for two" if any(b"*" in label for label in glob.labels) else None


def _label_hint(glob: bytes, label: bytes) -> str | None:
    if glob.startswith(b"["):
        return "without a port, the brackets of an IPv6 address are read as a set of characters: add the port"
    if label_matches(glob.lower(), label.lower()):
        return "capitals count: write the host in lower case"
    return None


def _port(address: ImageAddress) -> str:
    return f"port {address.port.decode()}" if address.port else "none"


def _quote(text: bytes) -> str:
    return '"' + printable(text.decode("utf-8", "replace")) + '"'
