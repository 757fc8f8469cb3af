"""Names of service accounts: as Kubernetes allows them, and nothing that could be read as another one."""

from __future__ import annotations

import pytest

from ostiary.core.account_names import (
    AccountName,
    account_of,
    checked_account_name,
    is_account_group,
    parse_account_name,
)


def test_an_account_is_a_user_in_two_groups() -> None:
    name = parse_account_name("shop/deployer")
    assert (name, str(name)) == (AccountName("shop", "deployer"), "shop/deployer")
    assert name.username == "ostiary:serviceaccount:shop:deployer"
    assert name.groups == ("ostiary:serviceaccounts", "ostiary:serviceaccounts:shop")
    assert account_of(name.username) == name


@pytest.mark.parametrize("name", ["a", "a.b-c.d", "0", "a" * 63, ".".join(["a" * 62] * 4)])
def test_names_are_dns_subdomains(name: str) -> None:
    assert checked_account_name("shop", name).name == name


def test_any_other_name_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "A",
        "a:b",
        "a/b",
        "-a",
        "a-",
        "a..b",
        ".a",
        "a b",
        "a\n",
        "a" * 64,
        "é",
        "٣",
        ".".join(["a" * 63] * 4) + ".ab",
    ]
    for name in cases:
        with subtests.test(name=name), pytest.raises(ValueError, match="the name must be"):
            checked_account_name("shop", name)


def test_a_namespace_is_a_dns_label(subtests: pytest.Subtests) -> None:
    for namespace in ["", "a.b", "Shop", "shop:x", "a" * 64, "-", "shop\n"]:
        with subtests.test(namespace=namespace), pytest.raises(ValueError, match="the namespace must be"):
            checked_account_name(namespace, "deployer")


@pytest.mark.parametrize("text", ["", "deployer", "shop/", "/deployer", "shop/a/b"])
def test_an_account_is_written_with_its_namespace(text: str) -> None:
    with pytest.raises(ValueError, match=r"NAMESPACE/NAME|must be"):
        parse_account_name(text)


@pytest.mark.parametrize(
    "username",
    ["alice", "ostiary:serviceaccount:shop", "ostiary:serviceaccount:shop:a:b", "system:serviceaccount:shop:a", ""],
)
def test_no_other_user_is_an_account(username: str) -> None:
    assert account_of(username) is None


def test_only_two_kinds_of_groups_have_accounts_in_them() -> None:
    assert is_account_group("ostiary:serviceaccounts")
    assert is_account_group("ostiary:serviceaccounts:shop")
    for name in ("ostiary:serviceaccounts:", "ostiary:serviceaccounts:a:b", "ostiary:admins", "serviceaccounts", ""):
        assert not is_account_group(name)
