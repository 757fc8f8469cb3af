"""The page of the replicas: values in, markup out. Pure.

Called by the administration pages. What a replica says of itself is a value, and so escaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.text import age_text, printable
from ostiary.gateway.login.pages.markup import Markup, join
from ostiary.gateway.login.pages.messages import counted, say
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.replicas.comparison import Configuration, SeenReplica

_COMPARED = {
    Configuration.SAME: "replicas.same",
    Configuration.OTHER: "replicas.other",
    Configuration.UNKNOWN: "replicas.not_compared",
}


def replicas_body(replicas: Sequence[SeenReplica], count: str) -> Markup:
    return fill("admin_replicas.html", summary=_summary(replicas), count=count, rows=join(map(_row, replicas)))


def _summary(replicas: Sequence[SeenReplica]) -> Markup:
    unready = [each.name for each in replicas if each.trouble]
    others = [each.name for each in replicas if each.configuration is Configuration.OTHER]
    notes = []
    if unready:
        notes.append(fill("problem.html", text=say("replicas.not_ready", names=printable(", ".join(unready)))))
    if others:
        text = say("replicas.others", names=printable(", ".join(others)))
        notes.append(fill("note.html", kind="plain", text=text))
    if not notes:
        notes.append(fill("note.html", kind="good", text=say("replicas.good")))
    return join(notes)


def _row(seen: SeenReplica) -> Markup:
    replica = seen.replica
    tags = [fill("tag.html", text=printable(replica.version))]
    if seen.trouble:
        tags.append(fill("tag_bad.html", text=say("replicas.tag_not_ready")))
    if seen.configuration is Configuration.OTHER:
        tags.append(fill("tag_bad.html", text=say("replicas.tag_other")))
    rows = (fill("fact.html", name=say(name), value=value) for name, value in _facts(seen).items() if value)
    return fill("admin_replica.html", name=printable(seen.name), tags=join(tags), facts=join(rows))


def _facts(seen: SeenReplica) -> dict[str, str]:
    replica = seen.replica
    loaded = say("replicas.loaded", age=age_text(replica.configured_seconds))
    compared = say(_COMPARED[seen.configuration])
    configuration = ", ".join((printable(replica.configuration), compared, loaded)) if replica.configuration else ""
    return {
        "replicas.problem": printable(seen.trouble),
        "replicas.configuration": configuration,
        "replicas.revocations": _revocations(seen),
        "replicas.load": say(
            "replicas.load_text",
            rate=f"{replica.requests_per_second:g}",
            in_flight=str(replica.in_flight),
            streams=str(replica.open_streams),
            tokens=str(replica.tokens),
        ),
        "replicas.running": say(
            "replicas.running_text",
            age=age_text(replica.up_seconds),
            workers=counted("replicas.workers", replica.workers),
            pid=str(replica.pid),
        ),
    }


def _revocations(seen: SeenReplica) -> str:
    replica = seen.replica
    if replica.revocation is None:
        return say("replicas.unconfirmed")
    behind = (replica.head or 0) - replica.revocation
    number, seconds = str(replica.revocation), f"{replica.confirmed_seconds:g}"
    if behind > 0:
        return say("replicas.confirmed_behind", number=number, behind=str(behind), seconds=seconds)
    return say("replicas.confirmed", number=number, seconds=seconds)
