"""Brings a source to this machine: archives of Debian, layers of OCI images, what a Dockerfile makes."""

from __future__ import annotations

import bz2
import contextlib
import hashlib
import lzma
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from agentenv.archives import Archive, DamagedArchive
from agentenv.errors import ProtocolError, RuntimeUnavailable
from agentenv.images.blobs import decompressed
from agentenv.images.inodes import EPOCH
from agentenv.images.layers import Bounds
from agentenv.images.oci import MAX_JSON, OciImage, read_layout
from agentenv.images.programs import apt, find_program, need_program, run
from agentenv.images.progress import Report

_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?/")
# As mmdebstrap says it: without numbers of other users it cannot make their files.
_NO_MODE = "unable to pick chroot mode"
_BLOB = re.compile(r"blobs/sha256/[0-9a-f]{64}")
# A machine for training reads no manuals, and a smaller image is copied and read faster.
_EXCLUDED = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*", "/var/cache/*")


def fetch_debian(suite: str, packages: list[str], out: Path, report: Report, *, mirror: str | None = None) -> None:
    """Make an archive of a small Debian.

    Args:
        suite: Such as "bookworm".
        packages: Beside what every Debian has.
        out: The archive.
        report: Whom to tell.
        mirror: Where packages come from; None is the program's own choice.

    Raises:
        RuntimeUnavailable: mmdebstrap is missing, or does not get it done.
    """
    program = need_program("mmdebstrap", "to make a Debian root file system")
    argv = [program, "--variant=apt", "--format=tar", f"--include={','.join(packages)}", "--quiet"]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in _EXCLUDED]
    # Made on this machine, so they would say which one.
    argv += ['--customize-hook=rm -f "$1/etc/resolv.conf" "$1/etc/hostname"']
    argv += [suite, "-", *([mirror] if mirror else [])]
    variables = {"SOURCE_DATE_EPOCH": str(EPOCH)}
    if os.geteuid() == 0:
        # So that nothing is left elsewhere. Others' work is done by ids that see nothing of their user's directories.
        place = out.parent / "debian"
        place.mkdir(mode=0o755)
        variables["TMPDIR"] = str(place)
    purpose = f"making Debian {suite}"
    with report.task(f"{purpose} with {', '.join(packages)}"), open(out, "xb") as archive:
        try:
            run(
                argv,
                purpose=purpose,
                remedy="see what it says; as a user who is not root it needs the package uidmap and lines in"
                " /etc/subuid, and the network must be reachable (http_proxy)",
                directory=Path("/"),
                variables=variables,
                stdout=archive.fileno(),
            )
        except RuntimeUnavailable as error:
            if _NO_MODE not in str(error):
                raise
            said = str(error).partition("\n  remedy: ")[0]
            raise RuntimeUnavailable(said, _more_users()) from error


def _more_users() -> str:
    """What lets a user who is not root make files of other owners."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = "USER"
    numbers = "--add-subuids 100000-165535 --add-subgids 100000-165535"
    return (
        f"sudo usermod {numbers} {user} (or other numbers, where /etc/subuid and /etc/subgid give these to somebody),"
        f" and {apt('uidmap')}"
    )


def fetch_oci(reference: str, blobs: Path, work: Path, report: Report) -> OciImage:
    """Bring an image's layers here; those that are here already are not fetched again.

    Args:
        reference: As docker would take it; a registry on the loopback interface may do without TLS.
        blobs: Where layers are kept.
        work: An empty directory.
        report: Whom to tell.

    Raises:
        RuntimeUnavailable: skopeo is missing, or does not get it.
        ProtocolError: What came is not an OCI image.
    """
    program = need_program("skopeo", "to fetch OCI images")
    argv = [program, "copy", "--quiet", "--dest-shared-blob-dir", str(blobs)]
    argv += ["--src-tls-verify=false"] if _LOOPBACK.match(reference) else []
    argv += [f"docker://{reference}", f"oci:{work}/layout:image"]
    remedy = "check the reference; log in with: skopeo login HOST"
    with report.task(f"fetching {reference}"):
        run(argv, purpose=f"fetching {reference}", remedy=remedy, directory=work, variables={"TMPDIR": str(work)})
    return read_layout(work / "layout", blobs)


def open_archive(file: Path, blobs: Path, work: Path, report: Report) -> OciImage:
    """Take the layers out of an OCI archive, as skopeo, buildah and newer ``docker save`` write them.

    Raises:
        ProtocolError: It is no such archive, or larger than any image may be.
    """
    layout = work / "layout"
    layout.mkdir()
    bounds = Bounds()
    try:
        with report.task(f"reading {file.name}"), _plain(file) as stream:
            archive = Archive(stream)
            for member in archive:
                bounds.take(member.size)
                name = member.name.removeprefix("./")
                if member.kind != "file" or not (name == "index.json" or _BLOB.fullmatch(name)):
                    continue
                if name == "index.json":
                    if member.size > MAX_JSON:
                        most = f"an index.json of at most {MAX_JSON >> 20} MiB in {file}"
                        raise ProtocolError(f"expected {most}, got {member.size:,} bytes")
                    if not (layout / name).exists():
                        _write(archive, layout / name)
                else:
                    _take_blob(archive, blobs / "sha256" / name.rpartition("/")[2], work / "new", file)
    except (DamagedArchive, EOFError, lzma.LZMAError) as error:
        raise ProtocolError(f"expected an OCI archive, got {file}: {error}") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise ProtocolError(f"expected an OCI archive, got {file}: {error}") from error  # as bz2 says it
    if not (layout / "index.json").exists():
        raise ProtocolError(
            f"expected an OCI archive with an index.json, got {file}"
            f"\n  remedy: skopeo copy docker-archive:{file.name} oci-archive:NEW.tar"
        )
    return read_layout(layout, blobs)


def _take_blob(archive: Archive, place: Path, new: Path, file: Path) -> None:
    if place.exists():
        return
    # Others read from the same directory: nothing gets in under a name that is not its own.
    if _write(archive, new) != place.name:
        raise ProtocolError(f"expected a blob with digest {place.name} in {file}, got another one")
    os.replace(new, place)


def _write(archive: Archive, place: Path) -> str:
    """Write the content of an entry to a file; returns its SHA-256."""
    found = hashlib.sha256()
    with open(place, "wb") as new:
        for piece in archive.content():
            found.update(piece)
            new.write(piece)
    return found.hexdigest()


@contextlib.contextmanager
def _plain(file: Path) -> Iterator[IO[bytes]]:
    """What a file holds; archives may be compressed as a whole."""
    with open(file, "rb", buffering=0) as raw:
        magic = raw.read(6)
        raw.seek(0)
        if magic == b"\xfd7zXZ\0":
            with lzma.open(raw) as stream:
                yield stream
        elif magic.startswith(b"BZh"):
            with bz2.open(raw) as stream:
                yield stream
        else:
            with decompressed(raw) as stream:
                yield stream


def build_dockerfile(file: Path, work: Path, report: Report) -> Path:
    """Build a Dockerfile, with its directory as context, into an OCI archive.

    Raises:
        RuntimeUnavailable: buildah is missing, or the build fails.
    """
    if find_program("buildah") is None:
        raise RuntimeUnavailable(
            f"expected the program buildah to build {file.name}, and it is not on PATH",
            f"{apt('buildah')}; or build it elsewhere and use oci:REFERENCE or oci-archive:FILE",
        )
    name = "localhost/agentenv-build"
    argv = [need_program("buildah", "to build a Dockerfile"), "--root", str(work / "storage")]
    argv += ["--runroot", str(work / "run"), "--storage-driver", "vfs"]
    variables = {"TMPDIR": str(work), "BUILDAH_ISOLATION": "chroot"}
    out = work / "built.tar"
    with report.task(f"building {file.name}"):
        build = [*argv, "build", "--isolation", "chroot", "--timestamp", str(EPOCH), "-t", name, "-f", str(file)]
        run(
            [*build, str(file.parent)],
            purpose=f"building {file.name}",
            remedy="see what it says; what needs a newer buildah (here-documents: 1.33) can be built elsewhere for"
            " oci:REFERENCE or oci-archive:FILE",
            directory=work,
            variables=variables,
        )
        push = [*argv, "push", "--quiet", name, f"oci-archive:{out}:image"]
        run(push, purpose=f"exporting what {file.name} made", directory=work, variables=variables)
    return out
