"""A package that an environment needs and has not: what is said is where it is to be installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentenv import AgentENV
from agentenv.errors import EnvError
from agentenv.fleet.machines import DEFAULT_IMAGE
from machines_ground import need_machines

INTO_THE_IMAGE = "into the machine's image (agentenv image build NAME --from SOURCE --pip PACKAGE)"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("runtime", ["bubblewrap", "qemu"])
def test_where_a_package_is_to_be_installed(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = None
    if runtime == "qemu":
        need_machines()
        image = DEFAULT_IMAGE
        (tmp_path / image).mkdir()  # which is in no image's way
        monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError, match="no module 'no_such_package' in the sandbox") as caught:
        AgentENV.from_env("no_such_package:Env", runtime=runtime, rootfs_image=image)
    assert (INTO_THE_IMAGE in str(caught.value)) == (runtime == "qemu")
    assert ("sees the packages of its image" in str(caught.value)) == (runtime == "qemu")
