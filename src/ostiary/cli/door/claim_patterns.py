"""The headers of a client that must not reach an upstream, as patterns: for proxies that can clear by them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.gateway.http1.headers import IDENTITY_PREFIXES

# These are the proxy's own to set; of the names below this prefix, those in use are cleared one by one.
_OF_PROXIES = "x-forwarded-"


def prefixes(drop: Sequence[str] = ()) -> list[str]:
    """The beginnings of names that are always claims; *drop* are the operator's own (``listen.dropHeaders``)."""
    ours = {prefix.decode() for prefix in IDENTITY_PREFIXES} - {_OF_PROXIES}
    return sorted(ours | {name[:-1].lower() for name in drop if name.endswith("*")})


def regular_expression(names: Sequence[str], drop: Sequence[str] = ()) -> str:
    """What matches the *names* and every name with one of the prefixes, however they are spelled."""
    exact = [name for name in names if not name.startswith(tuple(prefixes(drop)))]
    parts = [*(any_spelling(name) for name in exact), *(any_spelling(name) + ".*" for name in prefixes(drop))]
    return f"(?i)^({'|'.join(parts)})$"


def any_spelling(name: str) -> str:
    """A regular expression for *name* and for what many programs cannot tell from it, all in lower case."""
    # To programs that make variables of headers, every character but letters and digits is the same.
    return name.replace("-", "[^a-z0-9]")
