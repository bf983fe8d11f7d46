"""Keys of [qemu] as an environment in a machine meets them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentenv import AgentENV
from agentenv.errors import RuntimeUnavailable
from machines_ground import make_drive, need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def machines() -> None:
    need_machines()


def _open(**table: Any) -> AgentENV:
    keys = {"env": "frail:Looking", "memory_mb": 256, "start_timeout_s": 120.0}
    return AgentENV(
        {"global": {"runtime": "qemu"}, "qemu": table, "environments": [{"id": "one", **keys}]},
    )


def test_a_drive_is_there_read_only_and_a_changed_one_is_another(tmp_path: Path) -> None:
    drives = [{"path": str(make_drive(tmp_path)), "mount": "/srv/data"}]
    with closing(_open(drives=drives, boot_args="agentenv.test=42", disk_ops_per_s=5000)) as env:
        env.reset(seed=1)
        assert env.call("read", "/srv/data/file") == "content"
        assert env.call("read", "/proc/cmdline").split()[-1] == "agentenv.test=42"
        assert env.call("write", "/srv/data/new").startswith("refused: ")
        limits = env._context.runtime._sandboxes[0]._machine._execute("query-block")
        assert [one["inserted"]["iops"] for one in limits] == [5000] * len(limits)
        assert len(limits) >= 4
    (tmp_path / "data.img").unlink()
    (tmp_path / "again").mkdir()
    make_drive(tmp_path / "again", text="another").rename(tmp_path / "data.img")
    with closing(_open(drives=drives)) as env:
        env.reset(seed=1)
        assert env.call("read", "/srv/data/file") == "another"


def test_a_drive_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailable, match="expected an ext4 or squashfs image that can be read"):
        _open(drives=[{"path": str(tmp_path / "absent"), "mount": "/a"}])
