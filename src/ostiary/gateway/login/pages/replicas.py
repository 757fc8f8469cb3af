"""The page of the replicas: values in, markup out. Pure.

Called by the administration pages. What a replica says of itself is a value, and so escaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.text import age_text, printable
from ostiary.gateway.login.pages.templates import Markup, fill, join
from ostiary.gateway.replicas.comparison import Configuration, SeenReplica

_COMPARED = {
    Configuration.SAME: "the same as most",
    Configuration.OTHER: "not that of most replicas",
    Configuration.UNKNOWN: "not compared yet",
}


def replicas_body(replicas: Sequence[SeenReplica], count: str) -> Markup:
    return fill("admin_replicas.html", summary=_summary(replicas), count=count, rows=join(map(_row, replicas)))


def _summary(replicas: Sequence[SeenReplica]) -> Markup:
    unready = [each.name for each in replicas if each.trouble]
    others = [each.name for each in replicas if each.configuration is Configuration.OTHER]
    notes = []
    if unready:
        notes.append(fill("problem.html", text=printable(f"Not ready: {', '.join(unready)}.")))
    if others:
        text = f"Another configuration than most: {', '.join(others)}. During an update this is normal."
        notes.append(fill("note.html", kind="plain", text=printable(text)))
    if not notes:
        notes.append(fill("note.html", kind="good", text="All replicas are ready and have the same configuration."))
    return join(notes)


def _row(seen: SeenReplica) -> Markup:
    replica = seen.replica
    tags = [fill("tag.html", text=printable(replica.version))]
    if seen.trouble:
        tags.append(fill("tag_bad.html", text="not ready"))
    if seen.configuration is Configuration.OTHER:
        tags.append(fill("tag_bad.html", text="another configuration"))
    rows = (fill("fact.html", name=name, value=printable(value)) for name, value in _facts(seen).items() if value)
    return fill("admin_replica.html", name=printable(seen.name), tags=join(tags), facts=join(rows))


def _facts(seen: SeenReplica) -> dict[str, str]:
    replica = seen.replica
    loaded = f"loaded {age_text(replica.configured_seconds)} ago"
    configuration_facts = (
        [replica.configuration, _COMPARED[seen.configuration], loaded] if replica.configuration else []
    )
    workers = "1 worker" if replica.workers == 1 else f"{replica.workers} workers"
    return {
        "Problem": seen.trouble,
        "Configuration": ", ".join(configuration_facts),
        "Revocations": _revocations(seen),
        "Load": (
            f"{replica.requests_per_second:g} requests/s, {replica.in_flight} in flight,"
            f" {replica.open_streams} open streams; tokens in use: {replica.tokens}"
        ),
        "Running": f"for {age_text(replica.up_seconds)}, {workers}, process {replica.pid}",
    }


def _revocations(seen: SeenReplica) -> str:
    replica = seen.replica
    if replica.revocation is None:
        return "not confirmed yet"
    behind = (replica.head or 0) - replica.revocation
    missing = f", {behind} behind" if behind > 0 else ""
    return f"up to number {replica.revocation}{missing}, confirmed {replica.confirmed_seconds:g} s ago"
