"""The ids of requests are random and never handed out twice."""

from __future__ import annotations

import os
import re

from ostiary_gateway.audit.auditor import AuditIds

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_ids_are_random_uuids_and_never_repeat() -> None:
    ids = AuditIds()
    taken = [ids.take() for _ in range(2000)]
    assert len(set(taken)) == 2000
    assert all(UUID4.fullmatch(text) for text in taken)


def test_two_workers_do_not_share_ids() -> None:
    ids = AuditIds()
    ids.take()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "".join(ids.take() for _ in range(10)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 1000).decode()
    os.close(reading)
    os.close(writing)
    assert len(theirs) == 360
    assert all(ids.take() not in theirs for _ in range(300))
