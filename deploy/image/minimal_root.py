"""Makes the root of the image: a virtual environment, and the Debian packages that it cannot run without.

    minimal_root.py VENV ROOT

Called by the Containerfile in its build stage. Which packages those are is asked of the system: the owners of the
interpreter, of its standard library, and of every shared library that they and the environment are linked against. No
list of names has to follow Debian's releases, and nothing that only installs packages (a shell, dpkg, perl) gets in.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from py_compile import PycInvalidationMode

USER = 65532
# Of these the image has the data: who made it, for scanners; and the names of ports and protocols.
DATA_PACKAGES = {"base-files", "netbase"}
# Pages, translations, conversions between character sets (Python has its own), what login shells read.
LEFT_OUT = re.compile(
    r"/usr/share/(man|lintian|info|bug|locale|base-files)/|/usr/lib/[^/]*/gconv/|/etc/(profile|update-motd)\.d/"
)
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nostiary:x:{USER}:{USER}:ostiary:/var/lib/ostiary:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nostiary:x:{USER}:\n",
    # Without it the C library asks DNS before /etc/hosts.
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
}
# The first four are where a runtime mounts things; it cannot make them in a root that is read-only.
FOLDERS = ("dev", "proc", "sys", "run", "etc/ostiary", "var/lib/dpkg/status.d")


def main(venv: Path, root: Path) -> None:
    make_skeleton(root)
    interpreter = (venv / "bin/python").resolve()
    # Two modules, since Debian divides the library: what an interpreter starts with, and the rest.
    packages = DATA_PACKAGES | owners([interpreter, Path(os.__file__), Path(sqlite3.__file__)])
    elf_files = [file for file in [*files_of(packages), *venv.rglob("*")] if is_elf(file)]
    packages |= owners(path for path in linked_libraries(elf_files) if not path.is_relative_to(venv))
    for package in sorted(packages):
        copy_package(package, root)
    copy(AUTHORITIES, root)
    shutil.copytree(venv, root / venv.relative_to("/"), symlinks=True)
    compile_all(root)


def make_skeleton(root: Path) -> None:
    root.mkdir()
    # Debian's /bin, /lib and others are links into /usr, and packages still name files by both paths.
    for link in sorted(Path("/").iterdir()):
        if link.is_symlink() and str(link.readlink()).startswith("usr/"):
            (root / link.readlink()).mkdir(parents=True)
            (root / link.name).symlink_to(link.readlink())
    for name in FOLDERS:
        (root / name).mkdir(parents=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for name, text in FILES.items():
        (root / name).write_text(text)


def owners(paths: Iterable[Path]) -> set[str]:
    """The packages of *paths*. A file that no package owns would be missing in the image, so that is an error."""
    return {owner(path) for path in paths}


def owner(path: Path) -> str:
    # dpkg knows a file by one of the two paths that lead to it.
    in_usr = path.is_relative_to("/usr")
    other = Path("/", path.relative_to("/usr")) if in_usr else Path("/usr", path.relative_to("/"))
    for spelling in (path, other):
        package, colon, _ = output("dpkg", "-S", str(spelling)).partition(":")
        if colon:
            return package
    sys.exit(f"minimal_root: no package owns {path}")


def output(*command: str) -> str:
    """What *command* prints; nothing if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def files_of(packages: Iterable[str]) -> Iterator[Path]:
    for package in packages:
        yield from (Path(line) for line in output("dpkg", "-L", package).splitlines())


def is_elf(file: Path) -> bool:
    if file.is_symlink() or not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def linked_libraries(files: Iterable[Path]) -> set[Path]:
    """What the dynamic linker loads for *files*, their libraries' libraries included."""
    libraries = set[Path]()
    for file in files:
        listing = output("ldd", str(file))
        if "not found" in listing:
            sys.exit(f"minimal_root: {file} needs a library that is not installed:\n{listing}")
        # "libz.so.1 => /lib/.../libz.so.1 (0x...)", and the linker itself without an arrow.
        words = [word for word in listing.split() if word.startswith("/")]
        libraries |= {Path(word) for word in words}
    return libraries


def copy_package(package: str, root: Path) -> None:
    for path in files_of([package]):
        if not wanted(str(path)) or (path.is_dir() and not path.is_symlink()):
            continue
        copy(path, root)
    # One file a package, since there is no dpkg: this is where scanners look for what an image without one contains.
    (root / "var/lib/dpkg/status.d" / package).write_text(output("dpkg", "-s", package))


def wanted(path: str) -> bool:
    if path.startswith("/usr/share/doc/"):
        # The licence travels with the software.
        return path.endswith("/copyright")
    return LEFT_OUT.match(path) is None


def copy(path: Path, root: Path) -> None:
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink() and not target.exists():
        shutil.copy2(path, target, follow_symlinks=False)


def compile_all(root: Path) -> None:
    """Compile once, here: a read-only root cannot keep what Python would compile at each start.

    By hash, unchecked: a time stamp would make two builds differ, and nobody edits the files of an image.
    """
    complete = compileall.compile_dir(
        root,
        maxlevels=40,
        quiet=1,
        stripdir=str(root),
        prependdir="/",
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )
    if not complete:
        sys.exit("minimal_root: not everything could be compiled")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
