"""A copy of this host's Python that runs in any root file system: binary, libraries, and what it imports."""

from __future__ import annotations

import compileall
import contextlib
import io
import os
import py_compile
import re
import shutil
import sys
import sysconfig
from pathlib import Path

from agentenv.errors import RuntimeUnavailable
from agentenv.images.initramfs import find_loader
from agentenv.images.programs import need_program, run

_HOME = "/.agentenv"
# What an agent never needs: tests, windows, installers, other databases, and extensions with large libraries.
_MODULES = frozenset(
    """
    __phello__ __pycache__ ensurepip idlelib lib2to3 pydoc_data site-packages dist-packages test tests tkinter turtle.py
    turtledemo lib-dynload venv
    """.split()  # noqa: SIM905 (one a line would be a page)
)
_EXTENSION = re.compile(
    r"(_test|_xx|xx|_ctypes_test|_curses|_dbm|_gdbm|_hashlib|_sqlite3|_ssl|_tkinter|_crypt|audioop|nis|ossaudiodev"
    r"|readline|spwd).*"
)


def base_interpreter() -> Path:
    """The interpreter behind this one: not the link of a virtual environment."""
    return Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()


def copy_interpreter(home: Path) -> str:
    """Copy this host's Python into a directory.

    Args:
        home: Gets ``bin/python3``, ``lib`` with the shared libraries and the loader, and the standard library where
            the interpreter looks for it.

    Returns:
        The name of the loader in ``lib``.

    Raises:
        RuntimeUnavailable: It cannot be copied.
    """
    program = base_interpreter()
    loader = find_loader(program)
    if loader is None:
        raise RuntimeUnavailable(
            f"expected a Python with shared libraries to copy, and {program} is linked statically",
            "run agentenv by another Python, such as the system's",
        )
    libraries = home / "lib"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    libraries.mkdir(exist_ok=True)
    shutil.copyfile(program, home / "bin/python3")
    (home / "bin/python3").chmod(0o755)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = home / sys.platlibdir / version
    _copy_library(Path(sysconfig.get_path("stdlib")), library)
    extensions = _copy_extensions(library / "lib-dynload")
    for name, path in _needed([program, *extensions]).items():
        shutil.copyfile(path, libraries / name)
    name = Path(loader).name
    shutil.copyfile(Path(loader).resolve(), libraries / name)
    (libraries / name).chmod(0o755)
    _compile(library, f"{_HOME}/{library.relative_to(home)}")
    packages = library / _packages_in(program, f"{_HOME}/{library.relative_to(home)}")
    packages.mkdir()
    (packages / "agentenv.pth").write_text(f"{_HOME}/packages\n", encoding="ascii")
    return name


def _packages_in(program: Path, library: str) -> str:
    """Where an interpreter looks for packages in its library: Debian's does not do so where all others do."""
    code = f"import site; print(*site.getsitepackages([{_HOME!r}]), sep='\\n')"
    said = run([str(program), "-I", "-c", code], purpose="asking this Python where it looks for packages").text
    within = [line.removeprefix(f"{library}/") for line in said.splitlines() if line.startswith(f"{library}/")]
    return next((name for name in within if "/" not in name), "site-packages")


def compile_packages(folder: Path, place: str) -> None:
    """Compile a directory's modules and keep their source, so that errors can show it."""
    _compile(folder, place, keep_source=True)


def _copy_library(source: Path, destination: Path) -> None:
    def unwanted(_folder: str, names: list[str]) -> set[str]:
        odd = {name for name in names if name.startswith("config-") or name.endswith((".exe", ".a"))}
        return odd | (_MODULES & set(names))

    shutil.copytree(source, destination, ignore=unwanted, symlinks=False, ignore_dangling_symlinks=True)


def _copy_extensions(destination: Path) -> list[Path]:
    destination.mkdir()
    found = []
    # A virtual environment's configuration variables are those of the Python behind it.
    for path in sorted(Path(sysconfig.get_config_var("DESTSHARED") or "").glob("*.so")):
        if not _EXTENSION.fullmatch(path.name):
            shutil.copyfile(path, destination / path.name)
            found.append(path)
    return found


def _needed(programs: list[Path]) -> dict[str, Path]:
    """The shared libraries of programs, by the name they are looked for."""
    ldd = need_program("ldd", "to find the libraries of Python")
    said = run([ldd, *map(str, programs)], purpose="finding the libraries of Python").text
    if missing := sorted(set(re.findall(r"^\s+(\S+) => not found", said, re.M))):
        raise RuntimeUnavailable(f"expected the libraries of {programs[0]}, and there is no {', '.join(missing)}")
    found = re.findall(r"^\s+(\S+) => (/\S+)", said, re.M)
    return {name: Path(path).resolve() for name, path in found}


def _compile(folder: Path, place: str, *, keep_source: bool = False) -> None:
    """Compile modules so that nothing depends on when; those without source lie where the source was."""
    # It writes about files that do not compile, such as those for other versions.
    with contextlib.redirect_stdout(io.StringIO()):
        compileall.compile_dir(
            folder,
            quiet=2,
            legacy=not keep_source,
            stripdir=str(folder),
            prependdir=place,
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    if keep_source:
        return
    for path in folder.rglob("*.py"):
        if path.with_suffix(".pyc").exists():
            os.unlink(path)
