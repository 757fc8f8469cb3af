"""What opens a key that is kept elsewhere: a plugin for each scheme of address (``pkcs11:``, ``tpm2:``, ...).

    [project.entry-points."ostiary.key"]
    pkcs11 = "ostiary.keys.pkcs11:Pkcs11Key"

What it opens is an `ostiary.model.DeviceKey`, which signs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self, runtime_checkable

from ostiary.model import DeviceKey, Secret


@runtime_checkable
class MadeFromAddress(Protocol):
    """What an entry point must lead to."""

    @classmethod
    def from_address(cls, address: str, directory: Path) -> Self:
        """Read *address*, without its scheme; paths are meant from *directory*. Raises `ValueError` with a sentence.

        It opens nothing. An attribute that it does not know is a mistake: nothing of an address is ignored.
        """


@runtime_checkable
class KeyProvider(Protocol):
    """One address, read and not opened yet.

    Its life is: `from_address`, then `program` and `pin_source` are looked at, then `open`, perhaps several times: what
    is opened may be lost and opened again. `open` and the key's `sign` are called in one thread that belongs to the
    key, one call at a time, and whoever waits there gives up after a while. Nothing is retried: a card that counts
    wrong PINs would lock.
    """

    @property
    def program(self) -> tuple[str, ...]:
        """The command and its arguments, or the library, that the address has us run; empty if it names none.

        An address may come with somebody's kubeconfig, so the caller asks its plugin policy about it first.
        """

    @property
    def pin_source(self) -> str:
        """The file with the PIN, if the address names one: a path or a ``file:`` URL, as it is written there.

        The caller resolves it, and asks its plugin policy about it if there is no program.
        """

    def open(self, *, executable: str, pin: Secret | None, asked: bool) -> DeviceKey:
        """The key, ready to sign. *executable* is where the policy found the program; empty if there is none.

        Raise `PinNeeded` if the device wants a PIN and *pin* is None; `PinWrong` if it refused this one. *asked* says
        that a person has just typed it: without, a device that may lock at the next wrong PIN must not be given any.
        Other failures are `KeyUnusable`, with the code that fits.
        """
