"""Runs in the machine of tools/kvmlab: says as one JSON object what works there.

It is started without site-packages, as every import costs a good deal in an emulated machine.
"""

import ctypes
import fcntl
import json
import os
import socket
import subprocess
import sys

CREATE_VM, CREATE_VCPU = 0xAE01, 0xAE41  # linux/kvm.h
TUNSETIFF, TAP, NO_INFO = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
CLONE_NEWUSER = 0x10000000


def virtual_processor() -> bool:
    kvm = os.open("/dev/kvm", os.O_RDWR)
    vm = fcntl.ioctl(kvm, CREATE_VM, 0)
    return fcntl.ioctl(vm, CREATE_VCPU, 0) >= 0


def tap() -> bool:
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, b"probe0".ljust(16, b"\0") + (TAP | NO_INFO).to_bytes(24, "little"))
    return os.path.exists("/sys/class/net/probe0")


def loopback() -> bool:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
    return True


def user_namespace() -> bool:
    """The kernel refuses one to a process whose root is not that of its mount namespace."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def limited_group() -> str:
    os.mkdir("/sys/fs/cgroup/probe")
    with open("/sys/fs/cgroup/probe/memory.max", "w") as file:
        file.write(str(1 << 20))
    with open("/sys/fs/cgroup/probe/memory.max") as file:
        return file.read().strip()


def controllers() -> list[str]:
    with open("/sys/fs/cgroup/cgroup.subtree_control") as file:
        return file.read().split()


def version() -> str:
    return subprocess.run(["firecracker", "--version"], capture_output=True, text=True).stdout.splitlines()[0]


def first_line() -> str:
    """What the kernel prints first when the real Firecracker boots it."""
    settings = {
        "boot-source": {"kernel_image_path": os.environ["KVMLAB_VMLINUX"], "boot_args": "console=ttyS0"},
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 128},
        "drives": [],
    }
    with open("/tmp/machine.json", "w") as file:
        json.dump(settings, file)
    command = ["firecracker", "--no-api", "--config-file", "/tmp/machine.json"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    for line in process.stdout:
        if b"Linux version" in line:
            return line.decode()
    return ""


def main() -> None:
    probes = (virtual_processor, tap, loopback, user_namespace, limited_group, controllers, version, first_line)
    found: dict[str, object] = {
        "vsock": os.path.exists("/dev/vhost-vsock"),
        "directory": os.getcwd(),
        "variable": os.environ.get("PROBE"),
        "tmp": os.listdir("/tmp"),
        "input": sys.stdin.read(),
    }
    for probe in probes:
        try:
            found[probe.__name__] = probe()
        except OSError as error:
            found[probe.__name__] = str(error)
    print(json.dumps(found))
    # The process that Firecracker still is ends with the machine.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
