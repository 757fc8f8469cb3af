"""The page of the replicas. What a replica reports about itself is escaped."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.core.text import age_text, printable
from ostiary_gateway.login.admin.tables import REPLICAS, AdminFrame, table
from ostiary_gateway.login.pages.markup import NOTHING, Markup, escape, join
from ostiary_gateway.login.pages.messages import counted, say
from ostiary_gateway.login.pages.templates import fill
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.replicas.drift import Configuration, SeenReplica

_COLUMNS = (
    *("replicas.name", "replicas.version", "replicas.state", "replicas.configuration", "replicas.revocations"),
    *("replicas.load", "replicas.running"),
)
_COMPARED = {
    Configuration.SAME: "replicas.same",
    Configuration.OTHER: "replicas.other",
    Configuration.UNKNOWN: "replicas.not_compared",
}


def replicas_page(replicas: Sequence[SeenReplica], frame: AdminFrame) -> LoginAnswer:
    rows = [_row(each) for each in replicas]
    found = table(counted("admin.replica_count", len(rows)), _COLUMNS, rows)
    return frame.page(REPLICAS, fill("admin/replicas.html", summary=_summary(replicas), table=found))


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


def _row(seen: SeenReplica) -> Sequence[str]:
    replica = seen.replica
    return (
        printable(seen.name),
        printable(replica.version),
        _state(seen),
        _configuration(seen),
        _revocations(seen),
        say(
            "replicas.load_text",
            rate=f"{replica.requests_per_second:g}",
            in_flight=str(replica.in_flight),
            streams=str(replica.open_streams),
            tokens=str(replica.tokens),
        ),
        say(
            "replicas.running_text",
            age=age_text(replica.up_seconds),
            workers=counted("replicas.workers", replica.workers),
            pid=str(replica.pid),
        ),
    )


def _state(seen: SeenReplica) -> Markup:
    if not seen.trouble:
        return fill("admin/tag_good.html", text=say("replicas.tag_ready"))
    tag = fill("admin/tag_bad.html", text=say("replicas.tag_not_ready"))
    return fill("admin/with_tag.html", text=printable(seen.trouble), tag=tag)


def _configuration(seen: SeenReplica) -> Markup:
    replica = seen.replica
    if not replica.configuration:
        return say(_COMPARED[Configuration.UNKNOWN])
    parts = (
        escape(printable(replica.configuration)),
        say(_COMPARED[seen.configuration]),
        say("replicas.loaded", age=age_text(replica.configured_seconds)),
    )
    is_other = seen.configuration is Configuration.OTHER
    tag = fill("admin/tag_bad.html", text=say("replicas.tag_other")) if is_other else NOTHING
    return fill("admin/with_tag.html", text=Markup(", ".join(parts)), tag=tag)


def _revocations(seen: SeenReplica) -> str:
    replica = seen.replica
    if replica.revocation is None:
        return say("replicas.unconfirmed")
    behind = (replica.head or 0) - replica.revocation
    number, seconds = str(replica.revocation), f"{replica.confirmed_seconds:g}"
    if behind > 0:
        return say("replicas.confirmed_behind", number=number, behind=str(behind), seconds=seconds)
    return say("replicas.confirmed", number=number, seconds=seconds)
