"""What "auto" means, and what is refused."""

from __future__ import annotations

import pytest

from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.registry import REGISTRY, choose


@pytest.mark.parametrize(
    ("runtime", "isolation", "platform", "expected"),
    [
        ("auto", None, "linux", "bubblewrap"),
        ("auto", "sandbox", "linux", "bubblewrap"),
        ("auto", "process", "linux", "bubblewrap"),
        ("auto", "vm", "linux", "qemu"),
        ("auto", "process", "darwin", "process"),
        ("auto", "vm", "darwin", "qemu"),
        ("firecracker", "vm", "linux", "firecracker"),
        ("qemu", None, "linux", "qemu"),
        ("process", "process", "linux", "process"),
    ],
)
def test_choosing(runtime: str, isolation: str | None, platform: str, expected: str) -> None:
    assert choose(runtime, isolation, platform=platform) == expected


@pytest.mark.parametrize("isolation", [None, "process", "sandbox", "vm"])
def test_firecracker_is_taken_where_nothing_keeps_it(isolation: str | None) -> None:
    assert choose("auto", isolation, platform="linux", obstacle=lambda: "") == "firecracker"


@pytest.mark.parametrize(
    ("runtime", "isolation", "platform"),
    [("bubblewrap", None, "linux"), ("qemu", "vm", "linux"), ("auto", "vm", "darwin"), ("auto", "process", "darwin")],
)
def test_nothing_is_tried_where_it_does_not_matter(runtime: str, isolation: str | None, platform: str) -> None:
    def obstacle() -> str:
        raise AssertionError("tried")

    choose(runtime, isolation, platform=platform, obstacle=obstacle)


@pytest.mark.parametrize(
    ("runtime", "isolation", "platform", "words"),
    [
        ("auto", None, "darwin", "no isolating runtime for darwin"),
        ("auto", "sandbox", "darwin", "was asked for"),
        ("bubblewrap", "vm", "linux", 'gives "sandbox"'),
        ("process", "sandbox", "linux", 'gives "process"'),
        ("docker", None, "linux", "unknown runtime"),
    ],
)
def test_refusing(runtime: str, isolation: str | None, platform: str, words: str) -> None:
    with pytest.raises(RuntimeUnavailable, match=words) as caught:
        choose(runtime, isolation, platform=platform)
    assert caught.value.remedy


def test_everything_registered_can_be_imported() -> None:
    for name, entry in REGISTRY.items():
        module, _, attribute = entry.target.partition(":")
        assert getattr(__import__(module, fromlist=[attribute]), attribute).name == name
