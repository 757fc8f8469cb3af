"""Answers of sources: kept for as long as they hold, by whom they are for, and fetched once."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from ostiary.errors import CredentialError
from ostiary.model import Secret
from ostiary.registry.daemon.engine import SourceAnswers
from ostiary.registry.kubelet.sources import Command, LoginSource
from ostiary.testing import FakeClock
from ostiary.wire.credential_provider import BasicAuth, CacheKeyType, Request, Response

HOUR = timedelta(hours=1)


class Asked:
    """Stands for the sources outside: says what it is told to, and remembers who asked."""

    def __init__(self, kind: CacheKeyType = CacheKeyType.REGISTRY, duration: timedelta | None = HOUR) -> None:
        self.kind, self.duration = kind, duration
        self.images: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.forbidden = ""

    def __call__(self, request: Request, sources: tuple[LoginSource, ...]) -> Response:
        self.images.append(request.image)
        self.gate.wait(30)
        if request.image == self.forbidden:
            raise CredentialError("forbidden", code="docker-helper-failed")
        if self.error is not None:
            raise self.error
        token = request.service_account_token.reveal() if request.service_account_token else "nobody"
        return Response(self.kind, self.duration, {request.image: BasicAuth("robot", Secret(token))})


def answers(asked: Asked, clock: FakeClock, *, limit: int = 10) -> SourceAnswers:
    source = LoginSource(("*.io",), Command(("x",)), asked.kind, asked.duration)
    return SourceAnswers((source,), clock=clock, ask=asked, limit=limit)


def ask(kept: SourceAnswers, image: str, token: str = "", **annotations: str) -> Response:
    secret = Secret(token) if token else None
    request = Request(image, service_account_token=secret, service_account_annotations=annotations)
    return asyncio.run(kept.respond(request))


def test_an_answer_is_for_its_registry_until_its_time_is_over() -> None:
    asked, clock = Asked(), FakeClock()
    kept = answers(asked, clock)
    assert ask(kept, "a.io/x").cache_duration == HOUR
    clock.advance(minutes=45)
    assert ask(kept, "a.io/y").cache_duration == timedelta(minutes=15), "what is left of it"
    assert (asked.images, len(kept)) == (["a.io/x"], 1)
    ask(kept, "b.io/x")
    clock.advance(minutes=15)
    assert len(kept) == 1
    ask(kept, "a.io/y")
    assert asked.images == ["a.io/x", "b.io/x", "a.io/y"]


def test_an_answer_for_an_image_is_for_no_other() -> None:
    asked = Asked(CacheKeyType.IMAGE)
    kept = answers(asked, FakeClock())
    for image in ("a.io/x", "a.io/y", "a.io/x", "a.io/y"):
        ask(kept, image)
    assert asked.images == ["a.io/x", "a.io/y"]


@pytest.mark.parametrize("duration", [None, timedelta(0), timedelta(seconds=-1)])
def test_what_does_not_say_how_long_it_holds_is_not_kept(duration: timedelta | None) -> None:
    asked = Asked(duration=duration)
    kept = answers(asked, FakeClock())
    ask(kept, "a.io/x")
    ask(kept, "a.io/x")
    assert len(asked.images) == 2


def test_what_one_token_got_no_other_gets() -> None:
    asked = Asked()
    kept = answers(asked, FakeClock())
    passwords = [
        next(iter(ask(kept, "a.io/x", token).auth.values())).password.reveal() for token in ("", "t1", "t2", "t1", "")
    ]
    assert passwords == ["nobody", "t1", "t2", "t1", "nobody"]
    assert len(asked.images) == 3
    ask(kept, "a.io/x", "t1", role="admin")
    assert len(asked.images) == 4


def test_many_ask_at_once_and_the_source_is_asked_once() -> None:
    asked = Asked()
    kept = answers(asked, FakeClock())
    asked.gate.clear()

    async def together() -> None:
        tasks = [asyncio.create_task(kept.respond(Request(f"a.io/{number}"))) for number in range(50)]
        await asyncio.sleep(0)
        asked.gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(together())
    assert (len(asked.images), kept.runs) == (1, 1)


def test_an_answer_for_one_image_does_not_serve_those_who_waited_with_it() -> None:
    asked = Asked()
    kept = answers(asked, FakeClock())
    asked.kind = CacheKeyType.IMAGE
    asked.gate.clear()

    async def together() -> list[Response]:
        tasks = [asyncio.create_task(kept.respond(Request(f"a.io/{number}"))) for number in range(3)]
        await asyncio.sleep(0)
        asked.gate.set()
        return await asyncio.gather(*tasks)

    responses = asyncio.run(together())
    assert [list(response.auth) for response in responses] == [["a.io/0"], ["a.io/1"], ["a.io/2"]]
    assert len(asked.images) == 3


def test_an_error_for_one_image_is_not_told_to_those_who_waited_with_it() -> None:
    asked = Asked()
    kept = answers(asked, FakeClock())
    asked.forbidden = "a.io/0"
    asked.gate.clear()

    async def together() -> list[Response | BaseException]:
        tasks = [asyncio.create_task(kept.respond(Request(f"a.io/{number}"))) for number in range(3)]
        await asyncio.sleep(0)
        asked.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    responses = asyncio.run(together())
    assert [isinstance(response, CredentialError) for response in responses] == [True, False, False]


def test_what_depends_on_the_nodes_mirrors_is_not_kept() -> None:
    asked = Asked()
    source = LoginSource(("*.io",), Command(("x",)), asked.kind, asked.duration, hosts_dir="/certs.d")
    kept = SourceAnswers((source,), clock=FakeClock(), ask=asked)
    ask(kept, "a.io/x")
    ask(kept, "a.io/x")
    assert (len(asked.images), len(kept)) == (2, 0)


def test_an_error_is_not_kept_and_the_oldest_make_room() -> None:
    asked = Asked()
    kept = answers(asked, FakeClock(), limit=2)
    asked.error = CredentialError("no", code="docker-helper-failed")
    with pytest.raises(CredentialError):
        ask(kept, "a.io/x")
    asked.error = None
    for image in ("a.io/x", "b.io/x", "c.io/x"):
        ask(kept, image)
    assert len(kept) == 2
    kept.clear()
    assert len(kept) == 0
