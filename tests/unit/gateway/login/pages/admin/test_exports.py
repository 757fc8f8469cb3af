"""Exports have what the page shows, for those who may see it, and nothing that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ostiary.gateway.login.pages.admin import exports
from ostiary.gateway.login.pages.admin.listing.formats import Csv, Json, harmless_cell
from ostiary.model import UserInfo
from ostiary.testing import FakeClock
from tests.unit.gateway.login.pages.admin.administered import Administered, body_of
from tests.unit.gateway.signing_in import Make, Says, body


def test_no_cell_is_a_formula(subtests: pytest.Subtests) -> None:
    for text in [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\tx",
        "\rx",
        "\nx",
        "  =1+1",
        "|calc",
        "\N{FULLWIDTH EQUALS SIGN}1",
        "=" * 99,
    ]:
        with subtests.test(text=text):
            assert harmless_cell(text) == f"'{text}"
            (row,) = csv.reader(io.StringIO(Csv("X", ["a"]).rows([{"a": text}]).decode(), newline=""))
            assert row == [f"'{text}"]


def test_quotes_commas_and_lines_stay_in_their_cell() -> None:
    text = 'a "b", c\r\n=1;\N{SNOWMAN}'
    (row,) = csv.reader(io.StringIO(Csv("X", ["a", "b"]).rows([{"a": text, "b": "x"}]).decode(), newline=""))
    assert row == [text, "x"]


def test_json_has_texts_as_they_are() -> None:
    form = Json("X", ["a"])
    whole = form.head() + form.rows([{"a": "=1", "b": "y"}, {"a": "</script>"}]) + form.rows([]) + form.foot()
    assert json.loads(whole) == {"kind": "X", "items": [{"a": "=1"}, {"a": "</script>"}]}


async def test_sessions_are_exported_without_secrets(make: Make, clock: FakeClock) -> None:
    area = Administered(make, clock)
    provider = area.gateway.identity[0].instance
    assert isinstance(provider, Says)
    provider.client = UserInfo("=cmd|calc", groups=("a", "b"))
    issued = body(await area.gateway.get())
    provider.client = UserInfo("root")
    await area.root.sign_in()
    answer = await area.root.get("/auth/admin/export/sessions.csv")
    assert answer.header("Content-Disposition") == 'attachment; filename="sessions-20260101T000000Z.csv"'
    assert answer.header("X-Content-Type-Options") == "nosniff"
    text = await body_of(answer)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert {row["user"] for row in rows} == {"root", "'=cmd|calc"}
    assert issued["token"] not in text
    assert issued["renewal_token"] not in text
    found = json.loads(await body_of(await area.root.get("/auth/admin/export/sessions.json?user=root")))
    assert [item["user"] for item in found["items"]] == ["root"]
    assert (await area.root.get("/auth/admin/export/sessions.csv?kind=x")).status == 400
    for name in ("x.csv", "sessions.exe", "sessions", "sessions.csv.json", "../sessions.csv"):
        assert (await area.root.get(f"/auth/admin/export/{name}")).status == 404


async def test_decisions_are_exported_as_they_are_searched_for(make: Make, clock: FakeClock) -> None:
    area = Administered(make, clock)
    await area.root.sign_in()
    await area.page("/auth/admin/decisions")
    area.decide("d1", path="/x?=ost_" + "a" * 40)
    area.decide("d2", allowed=False)
    items = json.loads(await body_of(await area.root.get("/auth/admin/export/decisions.json?outcome=denied")))["items"]
    assert [item["id"] for item in items] == ["d2"]
    assert items[0]["decision"] == "denied"
    table = await body_of(await area.root.get("/auth/admin/export/decisions.csv"))
    assert len(list(csv.reader(io.StringIO(table)))) == 3


async def test_exports_at_the_same_time_are_bounded(
    make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MOST_EXPORTS", 1)
    area = Administered(make, clock)
    await area.root.sign_in()
    unread = await area.root.get("/auth/admin/export/sessions.csv")
    first = await area.root.get("/auth/admin/export/sessions.csv")
    assert first.status == 200, "one that nobody reads does not count"
    assert unread.stream is not None
    pieces = unread.stream()
    await anext(pieces)
    assert (await area.root.get("/auth/admin/export/accounts.csv")).status == 429
    await pieces.aclose()
    assert (await area.root.get("/auth/admin/export/accounts.csv")).status == 200
