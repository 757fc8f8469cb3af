"""The probes, a table for each class of the report."""

from __future__ import annotations

from ostiary.cli.doctor.probe import Check, Ground
from ostiary.cli.doctor.probes import door, http2, identity, paths, smuggling, sources, user


def all_checks(ground: Ground) -> tuple[Check, ...]:
    """Every check, in the order of the report."""
    return (
        *user.checks(ground),
        *identity.checks(ground),
        *user.leak_checks(ground),
        *sources.checks(ground),
        *paths.checks(ground),
        *smuggling.checks(ground),
        *http2.checks(ground),
        *door.checks(ground),
        *user.outage_checks(ground),
    )
