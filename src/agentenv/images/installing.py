"""Installs Python packages into a tree, by pip, run by the tree's own Python so that wheels fit it.

pip comes from the host where the tree has none, and with it how the host's user has configured it: indexes,
certificates, proxies, constraints. Local files and directories named there are shown to it, and nothing else.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.images.chroot import DEFAULT_PATH, HOST, run_inside
from agentenv.images.files import digest_file
from agentenv.images.inodes import EPOCH
from agentenv.images.progress import Report
from agentenv.images.trees import Tree, walk

# Where pip gets things from and what it takes; not where it puts them.
_KEPT = frozenset(
    """
    cert client-cert constraint default-timeout extra-index-url find-links index-url no-binary no-index only-binary pre
    prefer-binary proxy retries timeout trusted-host
    """.split()  # noqa: SIM905 (one a line would be a page)
)
_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
_DIST = re.compile(r"(?P<name>[A-Za-z0-9._]+)-(?P<version>[A-Za-z0-9._+!]+)\.dist-info")
# Program, version, packages; what they are comes from the image.
_SAID = re.compile(r"/[^\0\n]*\n\d{1,3}\.\d{1,3}\.\d{1,3}\n/[^\0\n]*")


@dataclass(frozen=True, slots=True)
class Python:
    """The Python of a tree.

    Attributes:
        program: Its path inside.
        version: Such as "3.11.2".
        packages: Where packages are installed, inside.
    """

    program: str
    version: str
    packages: str


def find_python(tree: Tree, purpose: str, path: str | None = None) -> Python:
    """Ask a tree's Python about itself.

    Args:
        tree: The tree.
        purpose: The option that needs it, as in "--pip".
        path: The image's own PATH, if it has one.

    Raises:
        ConfigError: There is none, or it is something else.
    """
    code = "import sys, sysconfig; print(sys.executable); print('%d.%d.%d' % sys.version_info[:3]); "
    code += "print(sysconfig.get_path('purelib'))"
    folders = (path or DEFAULT_PATH).split(":")
    if not any(os.path.lexists(tree.root / folder.lstrip("/") / "python3") for folder in folders):
        message = "expected an image with a Python (python3), and there is none in it"
        hint = "start from one that has it: --from debian:SUITE"
        raise ConfigError([Problem("command line", purpose, message, hint)])
    said = run_inside(
        tree,
        ["python3", "-I", "-c", code],
        purpose="asking the image's Python about itself",
        variables={"PATH": path or DEFAULT_PATH},
    )
    lines = said.text.splitlines()[-3:]
    if len(lines) < 3 or not _SAID.fullmatch("\n".join(lines)) or ".." in lines[2].split("/"):
        got = said.text[-200:]
        message = f"expected its Python to say where it is, its version and where packages are, got {got!r}"
        raise ConfigError([Problem("command line", purpose, message, "start from an image whose python3 is a Python")])
    return Python(*lines)


def pin(requirements: tuple[str, ...]) -> list[str]:
    """Requirements as ingredients of a key: a local file counts by its content.

    Raises:
        ConfigError: One is an option, or a path that is not there or cannot be read.
    """
    found = []
    for text in requirements:
        path = _local(text)
        if path is None and (text.startswith(("-", ".", "/")) or not text.strip()):
            message = f"expected a package as pip knows it, or the file of a wheel, got {text!r}"
            raise ConfigError([Problem("command line", "--pip", message)])
        try:
            found.append(text if path is None else f"{path.name}@{digest_file(path)}")
        except PermissionError as error:
            message = f"expected a file that can be read, and {path} cannot"
            raise ConfigError([Problem("command line", "--pip", message)]) from error
    return found


def install(tree: Tree, requirements: tuple[str, ...], report: Report, *, path: str | None = None) -> None:
    """Install packages into a tree.

    What is compiled and when must not show: all new files get the same time, and byte code that does not look at it.

    Args:
        tree: The tree.
        requirements: As pip has them.
        report: Whom to tell.
        path: The image's own PATH, if it has one.

    Raises:
        RuntimeUnavailable: pip fails, or there is none; has its last lines.
        ConfigError: The tree has no Python.
    """
    python = find_python(tree, "--pip", path)
    shown: dict[str, str] = {}
    words = [f"{HOST}/{_show(shown, str(file))}" if (file := _local(text)) else text for text in requirements]
    pips = _host_pips()
    variables = _configuration(pips[0] if pips else None, shown)
    host_pip = next((pip for pip in pips if _runs_by(pip, python.version)), None)
    command = [python.program]
    if host_pip is None:
        command += ["-m", "pip"]
    elif host_pip.is_dir():
        shown[str(host_pip)] = "pip/pip"
        command.append(f"{HOST}/pip/pip")
    else:
        shown[str(host_pip)] = host_pip.name
        command.append(f"{HOST}/{host_pip.name}/pip")
    command += ["install", "--no-compile", "--no-cache-dir", "--no-input", "--progress-bar", "off"]
    command += ["--no-warn-script-location", *words]
    before = _times(tree)
    with report.task(f"installing {' '.join(requirements)} for Python {python.version}"):
        run_inside(
            tree,
            command,
            purpose=f"installing {' '.join(requirements)} into the image",
            remedy="pip's own lines say why; what needs a compiler needs it in the image, or a wheel",
            variables={"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore", **variables},
            files=sorted(shown.items()),
            network=True,
        )
    with report.task("compiling"):
        _compile(tree, python)
    _settle(tree, before)


def installed(tree: Tree) -> list[str]:
    """Python packages in a tree, as name==version."""
    names = [path.rpartition("/")[2] for path, _ in walk(tree.root) if path.endswith(".dist-info")]
    found = [match for name in names if (match := _DIST.fullmatch(name))]
    return sorted(f"{match['name']}=={match['version']}" for match in found)


def _compile(tree: Tree, python: Python) -> None:
    command = [python.program, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", python.packages]
    try:
        run_inside(tree, command, purpose="compiling", variables={"PYTHONHASHSEED": "0"})
    except RuntimeUnavailable:
        # Packages carry templates and code for other versions, which need not compile.
        return


def _times(tree: Tree) -> dict[str, int]:
    return {path: status.st_mtime_ns for path, status in walk(tree.root)}


def _settle(tree: Tree, before: Mapping[str, int]) -> None:
    """Give what was written one time; ``before`` has the times of what was there. A clock may be set meanwhile."""
    for path, status in walk(tree.root):
        if before.get(path) != status.st_mtime_ns:
            os.utime(tree.root / path, (EPOCH, EPOCH), follow_symlinks=False)


def _local(text: str) -> Path | None:
    path = Path(os.path.expanduser(text))
    return path.absolute() if text.endswith((".whl", ".tar.gz", ".zip")) and os.path.isfile(path) else None


def _host_pips() -> list[Path]:
    """The package of this Python's pip, and the wheel that venv would install; either may be missing."""
    found = []
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent)
    bundled = importlib.util.find_spec("ensurepip")
    if bundled is not None and bundled.origin is not None:
        found += sorted((Path(bundled.origin).parent / "_bundled").glob("pip-*.whl"))[-1:]
    return found


def _runs_by(pip: Path, version: str) -> bool:
    """Whether a pip says that it runs by a version of Python; the image's may be older than the host's pip likes."""
    try:
        if pip.is_dir():
            (info,) = pip.parent.glob("pip-*.dist-info")
            text = (info / "METADATA").read_text(encoding="utf-8")
        else:
            with zipfile.ZipFile(pip) as wheel:
                (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
                text = wheel.read(name).decode("utf-8")
    except (OSError, ValueError, zipfile.BadZipFile):
        return True
    least = re.search(r"^Requires-Python: >=\s*(\d+)\.(\d+)", text, re.M)
    return least is None or tuple(map(int, version.split(".")[:2])) >= tuple(map(int, least.groups()))


def _configuration(host_pip: Path | None, shown: dict[str, str]) -> dict[str, str]:
    """pip's configuration as variables, with local paths as they are seen inside."""
    variables = {name: value for name, value in os.environ.items() if name.upper() in _VARIABLES}
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        if name in variables:
            variables[name] = _reach(variables[name], shown, whole=False)
    for key, value in _settings(host_pip).items():
        variables["PIP_" + key.replace("-", "_").upper()] = " ".join(
            _reach(word, shown, whole=key.endswith("index-url")) for word in value.split()
        )
    return variables


def _settings(host_pip: Path | None) -> dict[str, str]:
    program = [sys.executable, "-m", "pip"]
    if host_pip is not None and not host_pip.is_dir():
        program = [sys.executable, f"{host_pip}/pip"]
    try:
        listed = subprocess.run([*program, "config", "list"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.stdout.splitlines():
        name, equals, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if equals and section in found and key in _KEPT:
            try:
                found[section][key] = str(ast.literal_eval(value))
            except (ValueError, SyntaxError):
                continue
    return {**found["global"], **found["install"], **found[":env:"]}


def _reach(word: str, shown: dict[str, str], *, whole: bool) -> str:
    """A word of the configuration as it must be said inside; a local path in it is shown there.

    Args:
        word: A path, a URL or anything else.
        shown: Host path to path below ``HOST``; grows.
        whole: Whether the directory above is needed too, as by an index whose pages point at files beside it.
    """
    path = unquote(urlsplit(word).path) if word.startswith("file://") else word
    if not path.startswith("/") or not os.path.exists(path):
        return word
    path = os.path.normpath(path)
    folder, _, last = path.rpartition("/")
    if whole and folder.count("/") >= 1 and folder != os.path.expanduser("~"):
        inside = f"{HOST}/{_show(shown, folder)}/{last}"
    else:
        inside = f"{HOST}/{_show(shown, path)}"
    return f"file://{inside}" if word.startswith("file://") else inside


def _show(shown: dict[str, str], path: str) -> str:
    return shown.setdefault(path, f"{len(shown)}/{os.path.basename(path)}")
