"""Two replicas in processes of their own count once: passwords, codes, rates, bad tokens and quotas."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support import metrics
from tests.support.gateway import ServedGateway, password
from tests.support.replicas import HTML, PODS, ReplicaPair, sign_in_as_a_browser
from tests.support.waiting import until


def wait_for_exchange(gateway: ServedGateway) -> None:
    """Until the replica has told the others all that it counted, and knows what they had told."""
    until(lambda: metrics.value(gateway.probe("/metrics").content, "counts_waiting") == 0)


def statuses(gateway: ServedGateway, path: str, token: str | None = None, *, times: int, **options: Any) -> list[int]:
    return [gateway.get(path, token, **options).status_code for _ in range(times)]


def check_that_the_second_is_told(gateways: list[ServedGateway], token: str, *, admitted: int, refusal: int) -> None:
    """The first admits all that one replica may; the second one request, before it has heard of the first."""
    one, other = gateways
    assert Counter(statuses(one, PODS, token, times=admitted + 3)) == {200: admitted, refusal: 3}
    wait_for_exchange(one)
    assert statuses(other, PODS, token, times=1) == [200]
    wait_for_exchange(other)
    assert statuses(other, PODS, token, times=5) == [refusal] * 5


def test_five_wrong_passwords_are_checked_and_not_five_by_each_replica(replicas: ReplicaPair) -> None:
    with replicas.serving() as (one, other):
        wrong: dict[str, Any] = {"auth": ("alice", "wrong"), "times": 1}
        answered = [statuses(gateway, "/auth", **wrong)[0] for gateway in (one, other) * 4]
        assert answered == [401] * 5 + [429] * 3
        assert one.get("/auth", auth=("alice", password("alice"))).status_code == 429
        # The store remembers it, so a restart is no way around it.
        one.stop()
        one.start()
        assert statuses(one, "/auth", **wrong) == [429]


def test_ten_codes_a_minute_are_tried_and_not_ten_at_each_replica(replicas: ReplicaPair) -> None:
    with replicas.serving() as (one, other):
        cookies = sign_in_as_a_browser(one)
        answered = [
            gateway.get("/auth/device?code=BCDF-GHJK", headers=HTML | cookies).status_code
            for gateway in (one, other) * 7
        ]
        # One more for what a minute gives back while the requests take their time.
        assert 10 <= answered.count(404) <= 12
        assert answered[-4:].count(429) >= 2
        assert answered.count(404) + answered.count(429) == 14


def test_rates_and_quotas_are_those_of_all_replicas(replicas: ReplicaPair) -> None:
    limits = [{"name": "reads", "count": 4, "per": "1h", "users": ["bob"]}]
    quota = {"name": "reads", "type": "quota", "limits": limits}
    with replicas.serving(limits={"requestsPerSecond": 0.001, "burst": 20}, admission=[quota]) as gateways:
        alice, bob = (gateways[0].login(user).token for user in ("alice", "bob"))
        check_that_the_second_is_told(gateways, alice, admitted=20, refusal=429)
        check_that_the_second_is_told(gateways, bob, admitted=4, refusal=403)


def test_tokens_that_nobody_knows_are_counted_by_all_replicas(replicas: ReplicaPair) -> None:
    with replicas.serving(limits={"failuresPerMinute": 7}) as (one, other):
        assert Counter(statuses(one, PODS, "nobody", times=20))[401] in range(7, 12)
        wait_for_exchange(one)
        assert statuses(other, PODS, "nobody", times=1) == [401]
        wait_for_exchange(other)
        # A minute gives seven back, so one may pass; seven would if it counted alone.
        assert statuses(other, PODS, "nobody", times=5).count(401) <= 2
