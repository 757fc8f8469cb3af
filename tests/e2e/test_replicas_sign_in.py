"""A sign-in that one replica began goes on at the other, and a renewal that one did not answer is answered there."""

from __future__ import annotations

import re

from tests.support.replicas import EXTERNAL_URL, HTML, PODS, ReplicaPair, sign_in_as_a_browser


def test_a_device_that_asks_one_replica_is_approved_at_the_other(replicas: ReplicaPair) -> None:
    with replicas.serving() as (one, other):
        with one.http() as http:
            asked = http.post("/auth/device", data={"client": "ostiary on build-7"}).json()
        headers = HTML | sign_in_as_a_browser(one)
        with other.http() as http:
            page = http.get(f"/auth/device?code={asked['user_code']}", headers=headers)
            assert "ostiary on build-7" in page.text
            form = dict(re.findall(r'name="(form_token|code)" value="([^"]+)"', page.text)) | {"decision": "approve"}
            approved = http.post("/auth/device", data=form, headers=headers | {"Origin": EXTERNAL_URL})
            assert approved.status_code == 200, approved.text
        with one.http() as http:
            issued = http.post("/auth/device/token", data={"device_code": asked["device_code"]}).json()
        assert other.get(PODS, issued["token"]).status_code == 200


def test_a_renewal_that_a_killed_replica_did_not_answer_is_answered_by_the_other(replicas: ReplicaPair) -> None:
    with replicas.serving() as (one, other):
        spent = one.login("alice").renewal_token
        with one.http() as http:
            lost = http.post("/auth/renew", data={"renewal_token": spent}).json()
        one.kill()
        with other.http() as http:
            again = http.post("/auth/renew", data={"renewal_token": spent})
        assert (again.status_code, again.json()) == (200, lost)
        assert other.get(PODS, again.json()["token"]).status_code == 200
