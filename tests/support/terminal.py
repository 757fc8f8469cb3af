"""A command at a terminal of its own, and the person in front of it: what is shown there, what is typed.

person = AtTerminal([kubectl, "get", "pods"], env)
person.read_until("password: "); person.type("...\n")
code, stdout = person.end()
"""

from __future__ import annotations

import os
import select
import subprocess
import termios
from collections.abc import Mapping, Sequence

SECONDS = 100.0


class AtTerminal:
    """*command* with a terminal that controls it; stdout is a pipe, as it is in a script, or under kubectl."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._person, theirs = os.openpty()
        reading, writing = os.pipe()

        def take_the_terminal() -> None:
            os.login_tty(theirs)
            os.dup2(writing, 1)

        self.process = subprocess.Popen(
            command,
            env=env,
            preexec_fn=take_the_terminal,  # noqa: PLW1509  # it only moves descriptors
            pass_fds=(theirs, writing),
        )
        os.close(theirs)
        os.close(writing)
        self._stdout = os.fdopen(reading)
        self.shown = ""

    def read_until(self, text: str) -> None:
        while text not in self.shown:
            assert select.select([self._person], [], [], SECONDS)[0], self.shown
            try:
                self.shown += os.read(self._person, 4096).decode()
            except OSError:
                raise AssertionError(f"it has ended, and showed: {self.shown}") from None

    def echoes(self) -> bool:
        """Whether what is typed is shown."""
        return bool(termios.tcgetattr(self._person)[3] & termios.ECHO)

    def type(self, text: str) -> None:
        os.write(self._person, text.encode())

    def end(self) -> tuple[int, str]:
        """Exit code and stdout."""
        code = self.process.wait(SECONDS)
        with self._stdout:
            said = self._stdout.read()
        try:
            while select.select([self._person], [], [], 0)[0]:
                self.shown += os.read(self._person, 4096).decode()
        except OSError:
            # Nobody has the terminal open any more.
            pass
        os.close(self._person)
        return code, said
