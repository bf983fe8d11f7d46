"""Images in the OCI layout, from the index to the layers; every blob is checked against its digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.errors import ProtocolError
from agentenv.images.blobs import Blob, decompressed
from agentenv.images.files import digest_file
from agentenv.images.layers import MAX_BYTES, Bounds, Layer
from agentenv.images.progress import Report
from agentenv.images.trees import Tree

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
MAX_JSON = 8 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")


@dataclass(frozen=True, slots=True)
class Start:
    """How an image says its programs are to be started.

    Attributes:
        env: Environment variables.
        user: "name", "uid" or "uid:gid"; "" is root.
        workdir: Working directory.
        entrypoint: Program and first arguments.
        cmd: Its other arguments.
    """

    env: Mapping[str, str]
    user: str = ""
    workdir: str = "/"
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OciImage:
    """An image whose layers are at hand.

    Attributes:
        digest: Of its manifest, in hexadecimal.
        layers: Digest (hexadecimal), media type and size of each, lowest first.
        start: How its programs are started.
        blobs: The directory whose ``sha256`` has the blobs.
    """

    digest: str
    layers: tuple[tuple[str, str, int], ...]
    start: Start
    blobs: Path


def read_layout(layout: Path, blobs: Path) -> OciImage:
    """Read an image from an OCI layout.

    Args:
        layout: The directory with ``index.json``; with several images in it, the first for this machine counts.
        blobs: The directory whose ``sha256`` has the blobs.

    Raises:
        ProtocolError: It is not an OCI layout, or a blob is not what its digest says.
    """
    try:
        index = _parse(_read_small(layout / "index.json"), "index.json")
    except OSError as error:
        raise ProtocolError(f"expected an OCI layout with an index.json, got: {error}") from error
    for _ in range(4):
        digest, media_type = _choose(index)
        index = _read_json(blobs, digest)
        if media_type not in _INDEXES and "layers" in index:
            break
    else:
        raise ProtocolError("expected an index that leads to a manifest, got indexes of indexes")
    layers = []
    for layer in _list(index, "layers"):
        size = layer.get("size")
        known = size if isinstance(size, int) and 0 <= size <= MAX_BYTES else 0
        layers.append((_hex(layer.get("digest")), str(layer.get("mediaType", "")), known))
    config = index.get("config")
    if not isinstance(config, dict):
        raise ProtocolError(f"expected a manifest with a config, got {config!r:.200}")
    return OciImage(digest, tuple(layers), _start(_read_json(blobs, _hex(config.get("digest")))), blobs)


def unpack(image: OciImage, tree: Tree, report: Report) -> list[str]:
    """Apply all layers to an empty tree.

    Returns:
        Notes on what was left out.

    Raises:
        ProtocolError: A layer is damaged, not what its digest says, or wants out of the tree.
        RuntimeUnavailable: A program that decompresses is missing.
    """
    notes: list[str] = []
    bounds = Bounds()
    for number, (digest, media_type, size) in enumerate(image.layers, 1):
        with report.task(f"unpacking layer {number} of {len(image.layers)}", size) as task:
            if "encrypted" in media_type:
                raise ProtocolError(f"expected a layer that is not encrypted, got {media_type}")
            place = image.blobs / "sha256" / digest
            try:
                with contextlib.closing(Blob(place, digest, task)) as blob:
                    with decompressed(blob) as stream:
                        Layer(tree, bounds, notes).apply(stream)
                    # Nobody else reads it now: a program that decompresses is fed from another thread.
                    blob.finish()
            except ProtocolError as error:
                raise _blame(error, place, digest) from error
    return notes


def _blame(error: ProtocolError, place: Path, digest: str) -> ProtocolError:
    """The error of a layer that is not as expected, or of what the store kept of it, which then goes."""
    try:
        found = digest_file(place)
    except OSError:
        return error
    return error if found == digest else _discard("layer", place, digest, found)


def _discard(what: str, place: Path, digest: str, found: str) -> ProtocolError:
    """Remove a blob that is not what its digest says, so that it is not found again instead of a good one."""
    said = f"expected a {what} with digest {digest}, got {found}"
    try:
        place.unlink(missing_ok=True)
    except OSError as error:
        return ProtocolError(f"{said}, and {place} cannot be removed: {error.strerror}")
    return ProtocolError(f"{said}; the damaged file was removed, and the same command brings it again")


def _choose(index: Mapping[str, Any]) -> tuple[str, str]:
    wanted = _ARCHITECTURES.get(platform.machine(), platform.machine())
    there = []
    for entry in _list(index, "manifests"):
        chosen = entry.get("platform")
        architecture, system = (chosen.get(key) if isinstance(chosen, dict) else None for key in ("architecture", "os"))
        if architecture in (None, "", wanted) and system in (None, "", "linux"):
            return _hex(entry.get("digest")), str(entry.get("mediaType", ""))
        there.append(f"{str(system)[:40]}/{str(architecture)[:40]}")
    raise ProtocolError(f"expected an image for linux/{wanted}, got {', '.join(there[:20]) or 'none at all'}")


def _list(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = value.get(key)
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ProtocolError(f"expected a list of objects as {key!r} of an OCI image, got {found!r:.200}")
    return found


def _hex(digest: object) -> str:
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise ProtocolError(f"expected a digest such as sha256:..., got {digest!r:.200}")
    return found[1]


def _read_json(blobs: Path, digest: str) -> dict[str, Any]:
    place = blobs / "sha256" / digest
    try:
        data = _read_small(place)
    except OSError as error:
        raise ProtocolError(f"expected the blob sha256:{digest}, and it is missing") from error
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise _discard("blob", place, digest, found)
    return _parse(data, f"the blob sha256:{digest}")


def _read_small(path: Path) -> bytes:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > MAX_JSON else file.read(MAX_JSON + 1)
    if max(size, len(data)) > MAX_JSON:
        raise ProtocolError(f"expected at most {MAX_JSON >> 20} MiB of JSON in {path.name}, got {size:,} bytes")
    return data


def _parse(data: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"expected a JSON object in {where}, got: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"expected a JSON object in {where}, got {value!r:.200}")
    return value


def _start(config: Mapping[str, Any]) -> Start:
    """From an image's configuration (image-spec, config.md); what is not of the right type counts as unset."""
    found = config.get("config")
    inner: Mapping[str, Any] = found if isinstance(found, dict) else {}

    def texts(key: str) -> tuple[str, ...]:
        value = inner.get(key)
        return tuple(_text(str(one), key) for one in value) if isinstance(value, list) else ()

    env = dict(entry.partition("=")[::2] for entry in texts("Env") if "=" in entry[1:])
    user, workdir = inner.get("User"), inner.get("WorkingDir")
    return Start(
        env,
        _text(user, "User") if isinstance(user, str) else "",
        f"/{_text(workdir, 'WorkingDir').lstrip('/')}" if isinstance(workdir, str) else "/",
        texts("Entrypoint"),
        texts("Cmd"),
    )


def _text(value: str, key: str) -> str:
    """What a program can be given."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"expected text as {key!r} of an OCI image, got {value!r:.200}") from error
    if "\0" in value:
        raise ProtocolError(f"expected text without zero characters as {key!r} of an OCI image, got {value!r:.200}")
    return value
