"""Reads a security descriptor of Windows in its text form (SDDL): may anybody else use this file? Pure.

    O:S-1-5-21-1-2-3-1001 G:... D:PAI(A;OICI;FA;;;SY)(A;;0x1200a9;;;WD)
      the owner                 the entries: kind; inheritance; rights; object; inherited object; for whom

Called by `private_files`, with the text that `win32` gets from the system. What is not understood counts as open to
everybody.
"""

from __future__ import annotations

import re

# The system and its administrators, who can take any file anyway. OW and CO are the owner, who is judged apart.
_SYSTEM = frozenset({"SY", "BA", "OW", "CO", "S-1-5-18", "S-1-5-32-544", "S-1-3-4", "S-1-3-0"})
# A process that runs elevated makes files that belong to the administrators.
_OWNERS_BESIDES_US = frozenset({"BA", "SY", "S-1-5-32-544", "S-1-5-18"})
_ALLOWING = frozenset({"A", "OA", "XA", "ZA"})
_DENYING = frozenset({"D", "OD", "XD"})
_SECTION = re.compile(r"(?P<name>[OGDS]):(?P<text>(?:(?![OGDS]:)[^()]|\([^()]*(?:\([^()]*\)[^()]*)*\))*)")
_ENTRY = re.compile(r"\(((?:[^()]|\([^()]*\))*)\)")
_FIELDS = 6
EVERYBODY = "everybody"


def owner_of(descriptor: str) -> str | None:
    return _sections(descriptor).get("O")


def is_owned_by(descriptor: str, us: frozenset[str]) -> bool:
    owner = owner_of(descriptor)
    return owner is not None and owner in us | _OWNERS_BESIDES_US


def others_in(descriptor: str, us: frozenset[str]) -> tuple[str, ...]:
    """Who else is given anything by the access list of *descriptor*, in its order. *us* are the names of this user."""
    access_list = _sections(descriptor).get("D")
    if access_list is None or "NO_ACCESS_CONTROL" in access_list:
        # Without a list everybody may do everything; an empty list lets nobody in.
        return (EVERYBODY,)
    if _ENTRY.sub("", access_list).strip("PARI "):
        return (EVERYBODY,)
    return tuple(name for entry in _ENTRY.findall(access_list) if (name := _other(entry, us)) is not None)


def _other(entry: str, us: frozenset[str]) -> str | None:
    """For whom *entry* opens the file, if that is somebody else."""
    fields = entry.split(";")
    if len(fields) < _FIELDS:
        return EVERYBODY
    kind, whom = fields[0], fields[5]
    if kind in _DENYING:
        return None
    if kind not in _ALLOWING:
        return EVERYBODY
    return None if whom in us | _SYSTEM else whom or EVERYBODY


def only_for(sid: str) -> str:
    """An access list for the user *sid*, the system and its administrators, that what is made inside inherits.

    P: nothing is taken over from the folder above.
    """
    return f"D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{sid})"


def _sections(descriptor: str) -> dict[str, str]:
    sections: dict[str, str] = {}
    end = 0
    for match in _SECTION.finditer(descriptor):
        if match.start() != end or match["name"] in sections:
            return {}
        sections[match["name"]] = match["text"].strip()
        end = match.end()
    return sections if end == len(descriptor) else {}
