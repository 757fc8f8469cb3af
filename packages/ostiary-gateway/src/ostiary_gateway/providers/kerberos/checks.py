"""Checks across the settings of ``kerberos``. Needs no Kerberos library."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError
from ostiary_gateway.providers.kerberos.keytab import KeytabEntry, read_keytab
from ostiary_gateway.providers.kerberos.principals import Principal, Realm, is_plain, parse_principal
from ostiary_gateway.providers.kerberos.settings import KerberosSettings, RealmSettings

SERVICE = "HTTP"


def checked_realms(settings: KerberosSettings) -> tuple[Realm, ...]:
    """Return the realms. Duplicate realms, and realms that map to the same usernames, are reported."""
    names: set[str] = set()
    forms: dict[tuple[str, str], str] = {}
    for each in settings.realms:
        if each.name in names:
            each.fields.problem("duplicate realm", "name")
        names.add(each.name)
        other = forms.setdefault((each.prefix, each.suffix), each.name)
        if other != each.name:
            message = f"people of {other} and {each.name} would have the same usernames"
            each.fields.problem(message, None, f'give one of them a suffix: "@{each.name}"')
    return tuple(_realm(each) for each in settings.realms)


def check_instances(settings: KerberosSettings, fields: ConfigSection) -> None:
    for instance in settings.instances:
        if not is_plain(instance):
            fields.problem(f"{instance!r} is not an instance", "instances", "as in admin, for alice/admin@EXAMPLE.COM")


def named_services(settings: KerberosSettings, fields: ConfigSection) -> tuple[Principal, ...]:
    """Return the principals of ``servicePrincipals``. Invalid ones are reported."""
    services = [parse_principal(text) for text in settings.service_principals]
    for text, service in zip(settings.service_principals, services, strict=True):
        if service is None:
            hint = "as in HTTP/gateway.example.com@EXAMPLE.COM"
            fields.problem(f"{text!r} is not a principal with its realm", "servicePrincipals", hint)
    return tuple(service for service in services if service is not None)


def usable_services(
    entries: Sequence[KeytabEntry], named: Sequence[Principal], external_url: str
) -> tuple[Principal, ...]:
    """Return the principals of a keytab that tickets may be for: the *named* ones, or those of the gateway's host."""
    present = tuple(dict.fromkeys(entry.service for entry in entries))
    if named:
        return tuple(service for service in present if service in named)
    host = (urlsplit(external_url).hostname or "").lower()
    return tuple(service for service in present if _is_ours(service, host))


def check_keytab(
    settings: KerberosSettings, named: Sequence[Principal], external_url: str, fields: ConfigSection
) -> None:
    """Report a keytab that cannot be read, or that has no principal that tickets may be for."""
    if not fields.is_right("keytab", "servicePrincipals"):
        return
    try:
        entries = read_keytab(str(settings.keytab))
    except ConfigurationError as error:
        fields.problem(f"{error.summary}: {error.cause}", "keytab", "make it with ktadd of kadmin, or with ktpass")
        return
    usable = usable_services(entries, named, external_url)
    present = ", ".join(dict.fromkeys(str(entry.service) for entry in entries)) or "nothing"
    for service in named:
        if service not in usable:
            fields.problem(f"the keytab has no key of {service}; it has {present}", "servicePrincipals")
    if not named and not usable:
        host = urlsplit(external_url).hostname
        wanted = f"{SERVICE}/{host}" if host else f"{SERVICE}/ and a host, and externalURL does not tell which"
        hint = "create the principal and its keytab, or name the right one in servicePrincipals"
        fields.problem(f"the keytab has no key of {wanted}; it has {present}", "keytab", hint)


def _is_ours(service: Principal, host: str) -> bool:
    return len(service.components) == 2 and service.components[0] == SERVICE and service.components[1].lower() == host


def _realm(each: RealmSettings) -> Realm:
    return Realm(each.name, each.prefix, each.suffix, each.lowercase)
