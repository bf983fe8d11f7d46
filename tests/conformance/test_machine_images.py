"""Images other than the usual one in machines: what they say about starting programs, an older Python, none at all."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv import AgentENV, AgentVectorEnv
from agentenv.errors import CauseKind, RuntimeUnavailable
from agentenv.fleet.machines import machine_files
from agentenv.fleet.output import SandboxOutput
from agentenv.images.initramfs import find_busybox
from agentenv.images.rootfs import Recipe
from agentenv.sandbox.contract import Runtime, RuntimeOptions, SandboxSpec
from agentenv.sandbox.files import ENTRYPOINT
from agentenv.sandbox.registry import open_runtime
from agentenv.sandbox.runtimes._runid import new_run_id
from agentenv.testing import exact, traces
from hand_made_oci import File, folder, link, pack, write_layout
from machines_ground import need_image, need_machines

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

_ENDS_S = 60.0
_QEMU: dict[str, Any] = {"runtime": "qemu", "start_timeout_s": 120.0, "memory_mb": 256}
_STARTED = {
    "User": "app",
    "Env": ["PATH=/opt/bin:/bin", "GREETING=hello", "HOME=/nowhere"],
    "WorkingDir": "/app",
    "Entrypoint": ["wrapped", "in"],
    "Cmd": ["sh", "-c", "echo its own command"],
}
_WRAPPED = b'#!/bin/sh\necho wrapped "$1"\nshift\nexec "$@"\n'
# Played by hand in the image, and by us in a machine of it.
_BY_HAND = """
import gymnasium, json, sys
env = gymnasium.make("CartPole-v1")
env.action_space.seed(7)
seen = [env.reset(seed=3)[0].tobytes().hex()]
while len(seen) < 60:
    observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    seen.append(observation.tobytes().hex() + " %r %r %r" % (float(reward), terminated, truncated))
    if terminated or truncated:
        seen.append(env.reset()[0].tobytes().hex())
print(json.dumps([list(sys.version_info[:2]), gymnasium.__version__, seen]))
"""


class Bench:
    """Runs commands in machines of an image."""

    def __init__(self, root: Path) -> None:
        self.output = SandboxOutput(lambda name: root / name)
        paths = tuple(path for path in sys.path if path)
        self.runtime: Runtime = open_runtime("qemu", RuntimeOptions(new_run_id(), paths, find_files=machine_files([])))
        self._root, self._count = root, 0

    def run(self, image: str, *commands: list[str], **variables: str) -> list[tuple[str, str, int | None]]:
        """What each wrote to its output and its errors, and its exit status."""
        specs = []
        for command in commands:
            name = f"c{self._count}"
            self._count += 1
            (self._root / name).mkdir()
            specs.append(
                SandboxSpec(
                    name, command=tuple(command), variables=variables, memory_mb=256, image=image, start_timeout_s=120.0
                )
            )
        found = []
        for sandbox in self.runtime.create(specs, self.output):
            assert select.select([sandbox.pidfd], [], [], _ENDS_S)[0], "the command did not end"
            cause = sandbox.cause()
            assert cause.kind is CauseKind.EXIT, cause
            sandbox.destroy()
            self.output.drain(sandbox.spec.id)
            out, err = (self.output.text(sandbox.spec.id, stream) for stream in ("stdout", "stderr"))
            found.append((out, err, cause.exit_code))
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    before = traces.take()
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        bench.runtime.close()
        bench.output.close()
    assert traces.take().left_since(before) == []


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that has no Python, and says everything about how programs are started."""
    need_machines()
    place = tmp_path_factory.mktemp("oci")
    layer = [
        folder("bin"),
        File("bin/busybox", Path(find_busybox()).read_bytes(), 0o755),
        *(link(f"bin/{name}", "busybox") for name in ("sh", "cat", "echo", "id", "ls", "pwd", "touch")),
        folder("opt"),
        folder("opt/bin"),
        File("opt/bin/wrapped", _WRAPPED, 0o755),
        folder("etc"),
        File("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1234:1235::/home/app:/bin/sh\n"),
        File("etc/group", b"root:x:0:\napp:x:1235:\nmore:x:77:other,app\n"),
        folder("app", 0o750, uid=1234, gid=1235),
        folder("shared", 0o770, gid=77),
    ]
    packed = pack(write_layout(place / "layout", [layer], _STARTED), place / "image.tar")
    return need_image("agentenv-tests-start", Recipe(f"oci-archive:{packed}"))


def test_a_command_starts_as_its_image_says(bench: Bench, started: str) -> None:
    ask = "id -u; id -g; pwd; touch made /shared/by-a-further-group || exit 9; ls -n made; echo $GREETING $PATH $HOME"
    plain, own, given, overruled = bench.run(
        started,
        ["sh", "-c", ask],
        [ENTRYPOINT],
        [ENTRYPOINT, "echo", "given"],
        ["sh", "-c", "echo $GREETING; touch /bin/new || exit 3"],
    )
    assert plain[2] == 0, plain
    uid, gid, directory, made, said = plain[0].splitlines()
    assert (uid, gid, directory) == ("1234", "1235", "/app")
    assert made.split()[2:4] == ["1234", "1235"]
    assert said == "hello /opt/bin:/bin /tmp/home"
    assert own == ("wrapped in\nits own command", "", 0)
    assert given == ("wrapped in\ngiven", "", 0)
    assert overruled[0] == "hello"
    assert overruled[2] == 3, "a directory of root's"


def test_the_configurations_variables_come_before_the_images(bench: Bench, started: str) -> None:
    assert bench.run(started, ["sh", "-c", "echo $GREETING"], GREETING="bye") == [("bye", "", 0)]


def test_environments_need_an_image_with_a_python(started: str) -> None:
    words = "^env: image agentenv-tests-start cannot run environments: the image has no python3; .*\n  remedy: agentenv"
    with pytest.raises(RuntimeUnavailable, match=words):
        AgentENV.from_env("CartPole-v1", rootfs_image=started, **_QEMU)


@pytest.fixture(scope="module")
def older() -> str:
    """An image with Python 3.9, and the newest packages for it."""
    return need_image("agentenv-tests-python39", Recipe("debian:bullseye", pip=("gymnasium", "numpy")))


def test_an_older_python_plays_what_it_plays_by_hand(bench: Bench, older: str) -> None:
    ((out, err, code),) = bench.run(older, ["python3", "-c", _BY_HAND])
    assert code == 0, err
    version, gymnasium, by_hand = json.loads(out)
    assert version == [3, 9]
    assert gymnasium.startswith("1.")
    with closing(AgentENV.from_env("CartPole-v1", rootfs_image=older, **_QEMU)) as env:
        env.action_space.seed(7)
        seen = [env.reset(seed=3)[0].tobytes().hex()]
        while len(seen) < 60:
            observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            seen.append(observation.tobytes().hex() + f" {float(reward)!r} {terminated!r} {truncated!r}")
            if terminated or truncated:
                seen.append(env.reset()[0].tobytes().hex())
        env.reset(seed=4)
        snapshot = env.snapshot()
        expected = [env.step(0) for _ in range(3)]
        env.restore(snapshot)
        exact.assert_same([env.step(0) for _ in range(3)], expected)
        assert snapshot.how == "pickle", snapshot.reasons
    assert seen == by_hand


def _played(image: str, checkpoint_every: str, *, kill: bool) -> list[Any]:
    with closing(
        AgentVectorEnv.from_env(
            "CartPole-v1", num_envs=2, seed=5, rootfs_image=image, checkpoint_every=checkpoint_every, **_QEMU
        )
    ) as vec:
        seen: list[Any] = [vec.reset(seed=1)[0].copy()]
        vec.action_space.seed(3)
        for step in range(40):
            if kill and step in (7, 23):
                os.kill(vec._fleet.sandboxes[step % 2].pid, signal.SIGKILL)
            observations, rewards, terminated, truncated, infos = vec.step(vec.action_space.sample())
            seen.append((np.copy(observations), rewards.copy(), terminated.copy(), truncated.copy(), infos))
        assert vec._fleet.recovery.recovered == (2 if kill else 0)
        return seen


@pytest.mark.parametrize("every", ["auto", "never"], ids=["from a state", "from the beginning"])
def test_an_older_python_is_recovered_like_any_other(older: str, every: str) -> None:
    exact.assert_same(_played(older, every, kill=True), _played(older, every, kill=False))


def test_an_image_whose_python_lacks_the_packages() -> None:
    image = need_image("agentenv-tests-bare", Recipe("debian:bullseye"))
    words = r"expected numpy 1\.21 or newer in the image, found none for Python 3\.9\.\d+ at /usr/bin/python3"
    with pytest.raises(RuntimeUnavailable, match=words):
        AgentENV.from_env("CartPole-v1", rootfs_image=image, **_QEMU)
