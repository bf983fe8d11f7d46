"""What is missing, or is not what a name says: names of images and kernels, and numbers of users."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentenv.errors import ConfigError, RuntimeUnavailable
from agentenv.images.image import resolve_image
from agentenv.images.kernels import resolve_kernel, take_kernel
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store
from hand_made_kernels import elf

_AS_NOBODY = """
import os, sys
from pathlib import Path
from agentenv.errors import RuntimeUnavailable
from agentenv.images.fetching import fetch_debian
from agentenv.images.progress import LINES
os.setgid(65534); os.setgroups([]); os.setuid(65534)
try:
    fetch_debian("bookworm", ["python3"], Path(sys.argv[1]), LINES)
except RuntimeUnavailable as error:
    print(error.remedy)
"""


def test_a_name_of_the_store_wins_over_a_directory(
    store: Store, tmp_path: Path, need, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("mkfs.ext4")
    (tmp_path / "same").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeUnavailable, match=r"got the directory 'same'\n.* build same --from same"):
        resolve_image("same", store)
    made = build_image("same", Recipe("same"), store)
    assert resolve_image("same", store) == made
    with pytest.raises(RuntimeUnavailable, match="as --image, got the directory"):
        resolve_image("./same", store, "--image")
    (tmp_path / "vmlinux").write_bytes(elf(version="6.1"))
    kernel = take_kernel(store, tmp_path / "vmlinux", name="same")
    assert resolve_kernel("same", store) == kernel


@pytest.mark.parametrize("value", ["~nobody-here/x", "n" * 300, "a/" * 3000, "with\0nul"])
def test_what_can_be_no_file_is_none(store: Store, value: str) -> None:
    with pytest.raises(RuntimeUnavailable, match="expected a file or the name of an image"):
        resolve_image(value, store)
    with pytest.raises(RuntimeUnavailable, match="expected a file or the name of a fetched kernel"):
        resolve_kernel(value if "\0" in value else f"{value}x", store)
    with pytest.raises(ConfigError, match="expected a file, got"):
        take_kernel(store, Path(value))
    with pytest.raises(ConfigError, match="expected a directory, got"):
        build_image("mine", Recipe(".", project=Path(value)), store)


def test_a_file_still_wins_over_a_name(store: Store, tmp_path: Path, need, monkeypatch: pytest.MonkeyPatch) -> None:
    need("mkfs.ext4")
    (tmp_path / "root").mkdir()
    build_image("same", Recipe(str(tmp_path / "root")), store)
    (tmp_path / "same").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert resolve_image("same", store).path == tmp_path / "same"


def test_the_nearest_name_is_a_hint(store: Store, tmp_path: Path, need) -> None:
    need("mkfs.ext4")
    build = "agentenv image build gymnasum --from debian:bookworm --pip gymnasium --pip numpy"
    with pytest.raises(RuntimeUnavailable) as caught:
        resolve_image("gymnasum", store)
    assert caught.value.remedy == build
    (tmp_path / "root").mkdir()
    build_image("gymnasium", Recipe(str(tmp_path / "root")), store)
    with pytest.raises(RuntimeUnavailable) as caught:
        resolve_image("gymnasum", store)
    assert caught.value.remedy == f'did you mean "gymnasium"? Else: {build}'
    (tmp_path / "vmlinux").write_bytes(elf(version="6.1"))
    take_kernel(store, tmp_path / "vmlinux", name="plain-6.1")
    with pytest.raises(RuntimeUnavailable, match=r'did you mean "plain-6\.1"'):
        resolve_kernel("plain-6.2", store)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("image.tar", "Dockerfile", "tiny-1.0-py3-none-any.whl")]
    for file in files:
        file.write_text("x")
        file.chmod(0)
    code = (
        "import sys; from agentenv.errors import ConfigError; from agentenv.images.installing import pin\n"
        "from agentenv.images.source import parse_source\n"
        "for use, text in ((parse_source, 'oci-archive:' + sys.argv[1]), (parse_source, sys.argv[2]),"
        " (lambda text: pin((text,)), sys.argv[3])):\n"
        "    try: use(text)\n"
        "    except ConfigError as error: print(error)\n"
    )
    # Root reads what nobody may.
    without = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    argv = [*without, sys.executable, "-c", code, *map(str, files)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert [f"expected a file that can be read, and {file} cannot" in done.stdout for file in files] == [True] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without numbers of others")
def test_who_may_not_make_files_of_other_owners_is_told_the_command(need) -> None:
    need("mmdebstrap", "newuidmap")
    out = Path("/tmp") / f"agentenv-test-{os.urandom(8).hex()}"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, str(out)], capture_output=True, text=True, timeout=60, check=True
        )
    finally:
        out.unlink(missing_ok=True)
    assert done.stdout.startswith("sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 nobody ")
