"""Check a provider against its contract and capabilities: presence, spelling, arguments and async of its members.

Without this check, a misspelt capability would be silently absent, and one with a wrong signature would fail when it is
first used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import get_type_hints

from ostiary_gateway.capabilities import ABILITIES, CONTRACTS, KNOWN_NAMES, TRAITS, members, raw_member

# Replacing a letter of a short name easily yields another word: prove and probe, roles_for and rules_for.
_LONG, _VERY_LONG = 9, 10


def is_misspelt(name: str, meant: str) -> bool:
    """Whether *name* is probably a misspelling of *meant*.

    Ignores capitals and underscores. One letter may be added, omitted, or swapped with the next; in a long name also
    replaced. A very long name with the same first letter may have two such errors. Very short names (``lint``,
    ``path``) resemble too many others, so only an exact match counts.
    """
    spelling, right = name.replace("_", "").lower(), meant.replace("_", "").lower()
    if spelling == right:
        return True
    if len(right) < 5:
        return False
    if _edits(spelling, right) == 1:
        return len(right) >= _LONG or len(spelling) != len(right) or sorted(spelling) == sorted(right)
    return len(right) >= _VERY_LONG and spelling[:1] == right[0] and _edits(spelling, right) == 2


def _edits(one: str, other: str) -> int:
    """Return the edit distance: letters added, removed, replaced, or swapped with the next."""
    rows = [list(range(len(other) + 1))]
    for index, letter in enumerate(one, 1):
        row = [index]
        for place, expected in enumerate(other, 1):
            row.append(min(rows[-1][place] + 1, row[-1] + 1, rows[-1][place - 1] + (letter != expected)))
            if index > 1 and place > 1 and letter == other[place - 2] and one[index - 2] == expected:
                row[-1] = min(row[-1], rows[-2][place - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


@dataclass(frozen=True, slots=True)
class ContractViolation:
    """How a provider violates its contract or a capability, and how to fix it."""

    message: str
    hint: str | None = None


def flaws(plugin_type: str, provider: object) -> tuple[ContractViolation, ...]:
    """Return the violations of *provider*, an instance or a class: missing, misspelt or incompatible members."""
    contract = CONTRACTS[plugin_type]
    missing = next((name for name in members(contract) if raw_member(provider, name) is None), None)
    if missing is not None:
        near = next(_near_names(provider, missing, contract), None)
        return (
            ContractViolation(f"it has no {missing}", None if near is None else f"did you mean {missing} by {near}?"),
        )
    optional = (*ABILITIES[plugin_type], *TRAITS[plugin_type])
    return (
        *_wrong_members(provider, contract),
        *(flaw for each in optional for flaw in _optional_flaws(provider, each)),
    )


def _optional_flaws(provider: object, protocol: type) -> Iterator[ContractViolation]:
    present = [name for name in members(protocol) if raw_member(provider, name) is not None]
    absent = [name for name in members(protocol) if name not in present]
    if present and absent:
        yield ContractViolation(
            f"it has {' and '.join(present)}, but no {' and no '.join(absent)}", "add what is missing"
        )
    elif present:
        yield from _wrong_members(provider, protocol)
    else:
        for right_name in absent:
            for name in _near_names(provider, right_name, protocol):
                hint = (
                    f"did you mean {right_name}? If it is for your own use, rename it, or begin it with an underscore"
                )
                yield ContractViolation(f"{_owner(provider)}.{name} is not an ability of the gateway's providers", hint)


def _wrong_members(provider: object, protocol: type) -> Iterator[ContractViolation]:
    hints = get_type_hints(protocol)
    for name in members(protocol):
        raw = raw_member(provider, name)
        if isinstance(raw, property):
            # Not evaluated here: it may depend on data that is not available yet.
            continue
        if name in hints:
            yield from _wrong_value(provider, name, raw, hints[name])
        elif not inspect.isdatadescriptor(inspect.getattr_static(protocol, name)):
            yield from _wrong_method(provider, name, raw, protocol)


def _wrong_value(provider: object, name: str, value: object, expected: object) -> Iterator[ContractViolation]:
    if isinstance(provider, type) and inspect.isdatadescriptor(value):
        # A slot: only an instance has the value.
        return
    actual = getattr(provider, name, None)
    if isinstance(expected, type) and not isinstance(actual, expected):
        choices = "True or False" if expected is bool else f"a {expected.__name__}"
        yield ContractViolation(f"{_owner(provider)}.{name} is a {type(actual).__name__}", f"make it {choices}")


def _wrong_method(provider: object, name: str, raw: object, protocol: type) -> Iterator[ContractViolation]:
    declared = getattr(protocol, name)
    is_static = isinstance(inspect.getattr_static(protocol, name), staticmethod)
    signature_of_contract = _without_annotations(inspect.signature(declared))
    must_wait = inspect.iscoroutinefunction(declared)
    hint = f"define it as: {'async ' if must_wait else ''}def {name}{signature_of_contract}"
    where = f"{_owner(provider)}.{name}"
    method = getattr(provider, name)
    if not callable(method):
        yield ContractViolation(f"{where} is not a method", hint)
        return
    if must_wait and not _may_be_awaited(method):
        yield ContractViolation(f"{where} is not async", hint)
    elif not must_wait and inspect.iscoroutinefunction(inspect.unwrap(method)):
        yield ContractViolation(f"{where} is async, and is called without waiting", hint)
    signature = _signature(provider, method, raw)
    if signature is not None and not _accepts(
        signature, signature_of_contract if is_static else _without_self(signature_of_contract)
    ):
        yield ContractViolation(f"{where} cannot be called with the arguments of its contract", hint)


def _may_be_awaited(method: Callable[..., object]) -> bool:
    if inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(inspect.unwrap(method)):
        return True
    if inspect.iscoroutinefunction(type(method).__call__):
        return True
    # A plain function may return an awaitable; its annotation says so.
    returned = str(getattr(inspect.unwrap(method), "__annotations__", {}).get("return", ""))
    return any(word in returned for word in ("Awaitable", "Coroutine", "Future", "Task"))


def _signature(provider: object, method: Callable[..., object], raw: object) -> inspect.Signature | None:
    """Return the parameters without ``self``; None if they cannot be determined."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return None
    if isinstance(provider, type) and not isinstance(raw, (staticmethod, classmethod)):
        return _without_self(signature) if inspect.isfunction(raw) else None
    return signature


def _accepts(signature: inspect.Signature, wanted: inspect.Signature) -> bool:
    """Whether every call that *wanted* allows fits: with all arguments, and with only those that have no default."""
    required = [parameter for parameter in wanted.parameters.values() if parameter.default is parameter.empty]
    return all(_binds(signature, each) for each in (wanted.parameters.values(), required))


def _binds(signature: inspect.Signature, parameters: Iterable[inspect.Parameter]) -> bool:
    by_name = {parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
    positional = [parameter for parameter in parameters if parameter.name not in by_name]
    try:
        signature.bind(*(None for _ in positional), **by_name)
    except TypeError:
        return False
    return True


def _without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _without_annotations(signature: inspect.Signature) -> inspect.Signature:
    parameters = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def _owner(provider: object) -> str:
    return provider.__name__ if isinstance(provider, type) else type(provider).__name__


# Misspelt names.


def _near_names(provider: object, right_name: str, protocol: type) -> Iterator[str]:
    """Yield public names of *provider* that resemble *right_name* and, like it, are a method or a value."""
    for name in _public_names(provider):
        if is_misspelt(name, right_name) and _is_method(provider, name) == _is_method(protocol, right_name):
            yield name


def _public_names(provider: object) -> Iterator[str]:
    classes = provider.__mro__ if isinstance(provider, type) else type(provider).__mro__
    names = dict.fromkeys(name for each in classes if each is not object for name in vars(each))
    if not isinstance(provider, type):
        names |= dict.fromkeys(getattr(provider, "__dict__", {}))
    return (name for name in names if not name.startswith("_") and name not in KNOWN_NAMES)


def _is_method(owner: object, name: str) -> bool:
    raw = raw_member(owner, name)
    return callable(raw) or isinstance(raw, (staticmethod, classmethod))
