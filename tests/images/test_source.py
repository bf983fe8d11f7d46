"""What --from may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv.errors import ConfigError
from agentenv.images.source import parse_source


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("Dockerfile", "Dockerfile.gpu", "containerfile", "image.tar", "odd"):
        (tmp_path / name).write_text("")
    (tmp_path / "root").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("debian:bookworm", "debian", "bookworm"),
        ("debian:trixie-backports", "debian", "trixie-backports"),
        ("oci:127.0.0.1:5000/team/env:1", "oci", "127.0.0.1:5000/team/env:1"),
        ("oci://host/name@sha256:00", "oci", "host/name@sha256:00"),
        ("oci-archive:image.tar", "oci-archive", "{}/image.tar"),
        ("root", "directory", "{}/root"),
        (".", "directory", "{}"),
        ("Dockerfile", "dockerfile", "{}/Dockerfile"),
        ("./Dockerfile.gpu", "dockerfile", "{}/Dockerfile.gpu"),
        ("containerfile", "dockerfile", "{}/containerfile"),
        ("dockerfile:odd", "dockerfile", "{}/odd"),
    ],
)
def test_forms(files: Path, text: str, kind: str, value: str) -> None:
    source = parse_source(text)
    assert (source.kind, source.value) == (kind, value.format(files))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("debian:", "a suite such as"),
        ("debian:--help", "a suite such as"),
        ("debian:Book worm", "a suite such as"),
        ("oci:", "a reference such as"),
        ("oci:--all", "a reference such as"),
        ("oci-archive:none.tar", "is none"),
        ("image.tar", "oci-archive:"),
        ("odd", "says which"),
        ("nowhere", "expected debian:SUITE, a directory"),
        ("ubuntu:noble", "expected debian:SUITE, a directory"),
        ("./Dockerfile.none", "there is no /.*/Dockerfile.none"),
        ("Dockerfile.none", "there is no /.*/Dockerfile.none"),
        ("dockerfile:none", "there is no /.*/none"),
        ("root/below", "there is no /.*/root/below"),
        ("docker://host/name", "got 'docker://host/name'"),
        ("", "expected debian:SUITE, a directory"),
        ("~nobody-here/root", "there is no /.*/~nobody-here/root"),
        ("./" + "a/" * 3000, "there is no /.*: File name too long"),
        ("oci-archive:" + "a" * 300, "is none: File name too long"),
        ("root/../" * 800, "File name too long"),
    ],
)
def test_what_is_none_of_them(files: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_source(text)
