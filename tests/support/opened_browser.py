"""What ``$BROWSER`` names in a test: a program that hands its address to the headless Chromium of the test.

    with OpenedBrowser(folder, lambda address: sign_in(chromium, address)) as browser:
        ...                                                    # something runs, with BROWSER=browser.path
    assert len(browser.opened) == 1

The program ends when the person has done with the page, as a browser does that is closed then.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

PROGRAM = """\
#!{python} -I
import json, socket, sys
with socket.create_connection(("127.0.0.1", {port})) as test:
    test.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    test.recv(1)
"""


class OpenedBrowser:
    """*act* is what the person does with an address; `opened` has those so far."""

    def __init__(self, folder: Path, act: Callable[[str], None]) -> None:
        self.opened: list[str] = []
        self._act = act
        self._error: BaseException | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.path = folder / "browser"
        self.path.write_text(PROGRAM.format(python=sys.executable, port=self._listener.getsockname()[1]))
        self.path.chmod(0o755)
        self._thread = threading.Thread(target=self._serve, name="browser")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Wakes up who waits in accept(); closing alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        if self._error is not None and error is not None:
            error.add_note(f"and in the browser: {self._error}")
        elif self._error is not None:
            raise self._error

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile() as lines:
                try:
                    (address,) = json.loads(lines.readline())
                    self.opened.append(address)
                    self._act(address)
                except BaseException as error:
                    # Raised where the block ends, in the thread of the test.
                    self._error = error
