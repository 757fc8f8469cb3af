"""Which program runs us, where a launcher stands between it and the interpreter: on Windows. Pure.

    kubectl.exe -> ostiary.exe -> python.exe (of the environment) -> python.exe (its base), which is us

Called by `windows_interpreter`. Each launcher is a new process, so the parent alone would never be the same twice.
"""

from __future__ import annotations

# What pip makes of our entry points.
_LAUNCHERS = ("ostiary.exe", "kubectl-ostiary.exe")
_DEEPEST = 4


def asking_process(processes: dict[int, tuple[int, str]], us: int, parent: int) -> int:
    """The process that runs our launcher; *parent* if there is none. *processes* are parents and names."""
    process = us
    for _ in range(_DEEPEST):
        above, name = processes.get(process, (0, ""))
        if name.lower() in _LAUNCHERS:
            return above or parent
        if not above:
            break
        process = above
    return parent
