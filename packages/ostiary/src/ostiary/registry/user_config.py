"""Paths of this user's provider configuration, for ``docker-credential-ostiary`` and ``ostiary registry``.

The file is $OSTIARY_REGISTRY_CONFIG, else ``~/.config/ostiary/registry.yaml``; the executables are in
$OSTIARY_REGISTRY_BIN_DIR, else in ``bin`` beside the file; with $OSTIARY_REGISTRY_SEARCH_PATH=1 also on PATH. The
daemon's socket is $OSTIARY_REGISTRY_SOCKET, else in this user's runtime directory. Imports only `os`, because the
helper starts on every pull.
"""

import os

CONFIG_VARIABLE, BIN_DIR_VARIABLE = "OSTIARY_REGISTRY_CONFIG", "OSTIARY_REGISTRY_BIN_DIR"
SEARCH_PATH_VARIABLE = "OSTIARY_REGISTRY_SEARCH_PATH"
SOCKET_VARIABLE = "OSTIARY_REGISTRY_SOCKET"
# The value of the variable that disables use of the daemon.
NO_SOCKET = "none"
ROOTS_SOCKET = "/run/ostiary/registry.sock"


def config_path() -> str:
    """Return the path of the configuration, which may not exist."""
    if path := os.environ.get(CONFIG_VARIABLE):
        return path
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "ostiary", "registry.yaml")


def existing_config_path() -> str | None:
    """Like `config_path`, or None if there is no such file. A file that a variable names is assumed to exist."""
    path = config_path()
    return path if os.environ.get(CONFIG_VARIABLE) or os.path.lexists(path) else None


def bin_dir(path: str | None = None) -> str:
    """Return the directory of the providers' executables, for the configuration at *path*."""
    beside = os.path.join(os.path.dirname(os.path.abspath(path or config_path())), "bin")
    return os.environ.get(BIN_DIR_VARIABLE) or beside


def search_path() -> bool:
    """Return whether other executables are searched for on PATH; raises `ConfigurationError`."""
    text = os.environ.get(SEARCH_PATH_VARIABLE, "")
    if text in ("", "0", "1"):
        return text == "1"
    # Imported here: see above.
    from ostiary.errors import ConfigurationError

    raise ConfigurationError(
        f"{SEARCH_PATH_VARIABLE} is neither 0 nor 1",
        cause="it says whether the executables of credential providers are looked for on PATH",
        hint=f"{SEARCH_PATH_VARIABLE}=1, or leave it out",
        code="config-invalid",
    )


def socket_path() -> str | None:
    """Return the socket of this user's daemon, whether it runs or not; None if no daemon is to be used.

    The kubelet starts its providers without a runtime directory, so root has one fixed path.
    """
    if os.name != "posix":
        # No daemon where the owner of a socket cannot be determined.
        return None
    if path := os.environ.get(SOCKET_VARIABLE):
        return None if path == NO_SOCKET else os.path.abspath(path)
    if os.geteuid() == 0:
        return ROOTS_SOCKET
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return f"{runtime}/ostiary/registry.sock" if runtime.startswith("/") else None
