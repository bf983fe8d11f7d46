"""Machines of QEMU whose agent calls over vhost-vsock, where the host has it and KVM works: here or in tools/kvmlab.

Who is between: other users of the host, other users of the machine, and other machines.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from agentenv import Sandbox
from agentenv.errors import RuntimeUnavailable
from agentenv.sandbox.runtimes._vm.accelerator import probe_kvm
from agentenv.sandbox.runtimes.qemu import vsock
from agentenv.sandbox.runtimes.qemu.vsock import Line
from agentenv.testing import traces
from machines_ground import need_machines

if not (_kvm := probe_kvm()).works:
    pytest.skip(f"{_kvm.detail}; {_kvm.remedy}", allow_module_level=True)
try:
    vsock.choose("vsock")
except RuntimeUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)
if os.geteuid() != 0:
    pytest.skip("expected root, to be another user", allow_module_level=True)

pytestmark = pytest.mark.timeout(400)

_KEYS: dict[str, Any] = {
    "runtime": "qemu",
    "memory_mb": 256,
    "settings": {"agent_port": "vsock"},
    "start_timeout_s": 240.0,
}
_S = 120.0

# Connects to a CID and a port, and answers whatever it is told with the same, as an agent answers a host's first words.
_ECHO = """
import socket, sys
stream = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
stream.settimeout(60)
try:
    stream.connect((int(sys.argv[1]), int(sys.argv[2])))
    print("connected", flush=True)
    heard = 0
    while part := stream.recv(4096):
        heard += len(part)
        stream.sendall(part)
    print("heard", heard, flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""
_LISTEN = """
import socket
listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
listener.bind((socket.VMADDR_CID_ANY, 5000))
listener.listen()
print("listens", flush=True)
while True:
    listener.accept()[0].close()
"""

_BIND = """
import socket, sys
socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).bind((int(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory for snapshots and sockets."""
    need_machines()
    subprocess.run(["modprobe", "vsock_loopback"], check=False)
    path = tmp_path_factory.mktemp("ground")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTENV_DATA", str(path / "data"))
        patch.setenv("XDG_RUNTIME_DIR", str(path))
        before = traces.take()
        yield path
        assert traces.take().left_since(before) == []


@pytest.fixture(scope="module")
def box(ground: Path) -> Iterator[Sandbox]:
    with Sandbox.create(name="first", **_KEYS) as box:
        yield box


def _cids() -> list[int]:
    """Those of all machines, as every user of the host can read them."""
    found = [re.findall(rb"guest-cid=(\d+)", _read(path)) for path in Path("/proc").glob("[0-9]*/cmdline")]
    return sorted({int(one) for several in found for one in several})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b""


def _sockets(pid: str) -> set[str]:
    """The sockets that a process holds."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one that the directory was read by
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return {one for one in found if one.startswith("socket:")}


def _only_cid() -> int:
    (cid,) = _cids()
    return cid


def _as_nobody(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a program as an ordinary user, who may not be allowed to read our interpreter: so it becomes one."""
    drop = "import os, socket\nos.setgroups([])\nos.setresgid(65534, 65534, 65534)\nos.setresuid(65534, 65534, 65534)\n"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", drop + code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _pipe(stream: IO[Any] | None) -> IO[Any]:
    assert stream is not None
    return stream


def _answers(box: Sandbox) -> None:
    assert box.exec(["echo", "here"], timeout_s=_S, check=True).text == "here\n"


def test_the_agent_calls_and_there_is_no_serial_port(box: Sandbox) -> None:
    said = box.exec("ls /sys/class/virtio-ports /sys/bus/virtio/drivers/vmw_vsock_virtio_transport", timeout_s=_S).text
    assert "vport" not in said
    assert "virtio" in said
    data = os.urandom(1 << 20)
    assert box.exec(["cat"], stdin=data, timeout_s=_S, check=True).stdout == data


def test_it_stands_still_and_goes_on_with_not_a_byte_lost(box: Sandbox) -> None:
    with box.start(["cat"]) as process:
        _pipe(process.stdin).write(b"before\n")
        for number in range(2):
            box.pause()
            box.resume()
            _pipe(process.stdin).write(b"after %d\n" % number)
        _pipe(process.stdin).close()
        assert _pipe(process.stdout).read() == b"before\nafter 0\nafter 1\n"
        assert process.wait(_S).exit_code == 0


def test_another_user_of_the_host_is_not_the_host(box: Sandbox) -> None:
    cid = _only_cid()
    for port in (cid, 1024, *range(1019, 1024)):
        attempt = _as_nobody(_ECHO, cid, port)
        assert attempt.communicate(timeout=_S)[0] == "ConnectionResetError\n", port
    # In the place of the host it cannot be either: the port that the machine calls is taken as long as it lives.
    for address in (socket.VMADDR_CID_ANY, socket.VMADDR_CID_HOST, 1):
        said = _as_nobody(_BIND, address, cid).communicate(timeout=_S)[0]
        assert "Address already in use" in said or "Cannot assign" in said, said
    _answers(box)


def test_the_monitor_holds_the_port_so_that_it_is_free_only_after_the_machine(box: Sandbox) -> None:
    (monitor,) = [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if b"guest-cid=" in _read(path)]
    assert len(_sockets(monitor) & _sockets("self")) == 1


def test_another_user_of_the_host_is_not_the_agent(box: Sandbox) -> None:
    box.pause()
    with contextlib.ExitStack() as undo:
        impostors = [undo.enter_context(_as_nobody(_ECHO, 1, _only_cid())) for _ in range(3)]  # by the loopback
        for one in impostors:
            undo.callback(one.kill)
        assert [_pipe(one.stdout).readline() for one in impostors] == ["connected\n"] * 3
        box.resume()
        _answers(box)
        box.pause()  # those who called before the agent were looked at before it, the others are now
        box.resume()
        assert [one.communicate(timeout=_S)[0] for one in impostors] == ["heard 0\n"] * 3


def test_another_user_of_the_machine_is_not_the_agent(box: Sandbox) -> None:
    command = ["python3", "-c", _ECHO, str(socket.VMADDR_CID_HOST), str(_only_cid())]
    with box.start(command, user="nobody") as impostor:
        assert _pipe(impostor.stdout).readline() == b"connected\n"
        box.pause()
        box.resume()
        _answers(box)
        assert _pipe(impostor.stdout).read() == b"heard 0\n"


def test_copies_have_cids_of_their_own_and_do_not_reach_one_another(box: Sandbox) -> None:
    with box.start(["python3", "-c", _LISTEN]) as listening:
        assert _pipe(listening.stdout).readline() == b"listens\n"
        original = _only_cid()
        first, second = box.fork(2)
        with first, second:
            cids = _cids()
            assert len(cids) == 3
            for one in (box, first, second):
                _answers(one)
            assert first.exec("hostname", timeout_s=_S).text != second.exec("hostname", timeout_s=_S).text
            # This host's users reach what listens in a machine, and another machine does not.
            assert _as_nobody(_ECHO, original, 5000).communicate(timeout=_S)[0] == "connected\nheard 0\n"
            reach = ["python3", "-c", _ECHO, str(original), "5000"]
            assert first.exec(reach, timeout_s=_S).text in ("TimeoutError\n", "ConnectionResetError\n")
        assert _cids() == [original]
        _answers(box)


def test_what_listens_on_the_host_is_reached_from_a_machine(box: Sandbox) -> None:
    """The hole that docs/security.md tells of, and why nobody has vsock without asking for it."""
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as listener:
        listener.bind((socket.VMADDR_CID_ANY, socket.VMADDR_PORT_ANY))
        listener.listen()
        port = listener.getsockname()[1]
        with box.start(["python3", "-c", _ECHO, str(socket.VMADDR_CID_HOST), str(port)], user="nobody") as caller:
            listener.settimeout(_S)
            stream, (cid, _) = listener.accept()
            stream.close()
            assert cid == _only_cid()
            assert _pipe(caller.stdout).read() == b"connected\nheard 0\n"


def test_a_snapshot_is_brought_back_with_another_cid(box: Sandbox) -> None:
    box.exec("echo kept >/root/note", timeout_s=_S, check=True)
    box.snapshot("ready")
    _answers(box)
    original = _only_cid()
    with Sandbox.from_snapshot("ready") as again:
        assert len(_cids()) == 2
        assert again.read_text("/root/note") == "kept\n"
        again.pause()
        again.resume()
        _answers(again)
    assert _cids() == [original]


def test_where_the_host_has_no_vhost_vsock_any_more_a_snapshot_is_refused(
    box: Sandbox, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vsock, "DEVICE", str(tmp_path / "absent"))
    with pytest.raises(RuntimeUnavailable, match=r"vsock: expected to open .*No such file") as refused:
        Sandbox.from_snapshot("ready")
    assert "modprobe vhost_vsock" in refused.value.remedy


def test_a_cid_or_a_port_that_is_taken_is_not_taken_again(ground: Path) -> None:
    first = Line.claim()
    try:
        number = first.cid + 1 if first.cid < 1 << 31 else first.cid - 1
        drawn = iter((first.cid, number))
        second = Line.claim(draw=lambda: next(drawn))
        assert second.cid == number
        second.close()
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as squatter:
            squatter.bind((socket.VMADDR_CID_ANY, number))
            drawn = iter((number, number + 9))
            third = Line.claim(draw=lambda: next(drawn))
            assert third.cid == number + 9
            third.close()
        with pytest.raises(RuntimeUnavailable, match="32 CIDs were tried, and all were taken"):
            Line.claim(draw=lambda: first.cid)
        # The CID alone, without its port, is somebody else's as well.
        first.listener.close()
        with pytest.raises(RuntimeUnavailable, match="32 CIDs were tried"):
            Line.claim(draw=lambda: first.cid)
    finally:
        first.close()
    Line.claim(draw=lambda: first.cid).close()
