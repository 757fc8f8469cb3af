"""Which part of a request line is the name of an object: requests for others of its kind differ only there. Pure.

Called by the mapper ``kubernetes``. It knows the usual forms only, and None means "cannot tell". What it says must
agree with `request_info`, which reads the same path: a property test compares the two.
"""

from __future__ import annotations

import re

# No percent-encoding, so that the text is the name. Neither a namespace, which is a resource that lies in itself, nor
# the old paths that begin with a verb.
_SEGMENT = r"[^/%]++"
_KIND = (
    rf"/(?:api/{_SEGMENT}|apis/{_SEGMENT}/{_SEGMENT})/(?:namespaces/{_SEGMENT}/)?"
    rf"(?!(?:namespaces|watch|proxy|status|finalize)(?:/|\Z)){_SEGMENT}"
)
_NAME = r"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?"
_OBJECT = re.compile(rf"({_KIND})(?:/({_NAME})((?:/{_SEGMENT})?))?", re.ASCII)
# Whole parameters of which only the number differs; no decision depends on them.
_NUMBER = re.compile(r"(?<![^&])((?:resourceVersion|limit|timeoutSeconds)=)[0-9]{1,18}(?![^&])", re.ASCII)


def split_name(path: str, query: str) -> tuple[str, str, str] | None:
    """See `ostiary.interfaces.attributes.SplitsNames`."""
    line = _OBJECT.fullmatch(path)
    if line is None:
        return None
    kind, name, after = line.groups()
    if name is not None:
        # The slash is a part of what stands before a name, so that an object and all objects have nothing in common.
        return kind + "/", name, f"{after}?{_without_numbers(query)}" if query else after
    after = _without_numbers(query)
    # Without a number nothing could differ.
    return None if after == query else (path, "", "?" + after)


def _without_numbers(query: str) -> str:
    # With a mark that no query holds: a parameter without a number is something else than one with any.
    return "#".join(_NUMBER.split(query))
