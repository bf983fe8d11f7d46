"""Hand-made OCI images: layers from a list of entries, put into a layout as other tools write them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAYER = "application/vnd.oci.image.layer.v1.tar"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True)
class File:
    """An entry of a layer; a file unless said otherwise."""

    name: str
    data: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    device: tuple[int, int] = (0, 0)
    xattrs: dict[str, bytes] = field(default_factory=dict)
    mtime: int = 1_000_000_000


def folder(name: str, mode: int = 0o755, **more: Any) -> File:
    return File(name, mode=mode, kind=tarfile.DIRTYPE, **more)


def link(name: str, target: str, **more: Any) -> File:
    return File(name, mode=0o777, kind=tarfile.SYMTYPE, link=target, **more)


def hard(name: str, target: str) -> File:
    return File(name, kind=tarfile.LNKTYPE, link=target)


def archive(entries: Sequence[File]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.size, info.mode, info.uid, info.gid = len(entry.data), entry.mode, entry.uid, entry.gid
            info.type, info.linkname, info.mtime = entry.kind, entry.link, entry.mtime
            info.devmajor, info.devminor = entry.device
            info.pax_headers = {
                f"SCHILY.xattr.{key}": value.decode("utf-8", "surrogateescape") for key, value in entry.xattrs.items()
            }
            tar.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def write_layout(
    place: Path,
    layers: Sequence[Sequence[File] | bytes],
    config: dict[str, Any] | None = None,
    *,
    architecture: str = "amd64",
) -> Path:
    """An OCI layout of one image; layers that are bytes are taken as they are, others are compressed by gzip."""
    blobs = place / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    raw = [layer if isinstance(layer, bytes) else gzip.compress(archive(layer), mtime=0) for layer in layers]
    image = {
        "architecture": architecture,
        "os": "linux",
        "config": config or {},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(_plain(data)).hexdigest()}" for data in raw],
        },
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": put(json.dumps(image).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [put(data, f"{LAYER}+gzip" if data[:2] == b"\x1f\x8b" else LAYER) for data in raw],
    }
    entry = {
        **put(json.dumps(manifest).encode(), MANIFEST),
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": "image"},
    }
    (place / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (place / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return place


def _plain(data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except (OSError, EOFError):
        return data


def pack(layout: Path, out: Path) -> Path:
    """An OCI archive of a layout."""
    with tarfile.open(out, "w") as tar:
        for path in sorted(layout.rglob("*")):
            tar.add(path, str(path.relative_to(layout)), recursive=False)
    return out
