"""What one user or group holds: its bindings, found by namespace. Pure.

Called by `ostiary.plugins.rbac.policy`, which adds and removes bindings, and by the index, which looks them up. Most
holders have one binding, and a large policy has very many holders, so one binding is stored as it is, a few are a
tuple, and only many are filed by namespace. None of them is ever changed: readers may be looking at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from ostiary.wire.rbac import Binding

# So many are looked through one by one.
_FEW = 16

_Bindings = tuple[Binding, ...]
Held: TypeAlias = "Binding | _Bindings | dict[str, Binding | _Bindings]"


def held_in(held: Held, namespace: str) -> list[Binding]:
    """The bindings of *namespace*, or of the whole cluster if it is empty, in the order of their names."""
    if isinstance(held, dict):
        held = held.get(namespace, ())
    if isinstance(held, Binding):
        return [held] if held.namespace == namespace else []
    bindings = [binding for binding in held if binding.namespace == namespace]
    # The order must not depend on what came first: it says which of two bindings is named in a reason.
    bindings.sort(key=_by_name)
    return bindings


def all_held(held: Held) -> Iterator[Binding]:
    if isinstance(held, dict):
        for bindings in held.values():
            yield from _as_tuple(bindings)
    else:
        yield from _as_tuple(held)


def change_held(held: Held | None, removed: list[Binding], added: list[Binding]) -> Held | None:
    """*held* without and with these; None if nothing is left. Bindings are told apart by identity."""
    if held is None and len(added) == 1 and not removed:
        return added[0]
    if not isinstance(held, dict):
        bindings = _changed(() if held is None else _as_tuple(held), removed, added)
        return _by_namespace(bindings) if len(bindings) > _FEW else _smallest(bindings)
    changed = dict(held)
    for namespace in {binding.namespace for binding in (*removed, *added)}:
        bindings = _changed(
            _as_tuple(changed.get(namespace, ())),
            [binding for binding in removed if binding.namespace == namespace],
            [binding for binding in added if binding.namespace == namespace],
        )
        smallest = _smallest(bindings)
        if smallest is None:
            changed.pop(namespace, None)
        else:
            changed[namespace] = smallest
    if len(changed) <= _FEW and sum(len(_as_tuple(bindings)) for bindings in changed.values()) <= _FEW:
        return _smallest(tuple(all_held(changed)))
    return changed


def _changed(bindings: _Bindings, removed: list[Binding], added: list[Binding]) -> _Bindings:
    if removed:
        gone = set(map(id, removed))
        bindings = tuple(binding for binding in bindings if id(binding) not in gone)
    return (*bindings, *added)


def _by_namespace(bindings: Iterable[Binding]) -> dict[str, Binding | _Bindings]:
    filed: dict[str, list[Binding]] = {}
    for binding in bindings:
        filed.setdefault(binding.namespace, []).append(binding)
    return {namespace: part[0] if len(part) == 1 else tuple(part) for namespace, part in filed.items()}


def _smallest(bindings: _Bindings) -> Binding | _Bindings | None:
    return bindings[0] if len(bindings) == 1 else bindings or None


def _as_tuple(bindings: Binding | _Bindings) -> _Bindings:
    return (bindings,) if isinstance(bindings, Binding) else bindings


def _by_name(binding: Binding) -> str:
    return binding.name
