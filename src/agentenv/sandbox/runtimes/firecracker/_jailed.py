"""Run as a program by root, first in a pid namespace: show a jail the files of its machine, and start the jailer in it.

The files are bound into the jail's directory in a mount namespace of its own, which the jailer inherits and which
ends with it: nothing is copied, nothing has to lie on the same disk, and no mount is ever seen or left outside.

Whoever started this has the kernel kill it when they end. The jailer becomes another user, and with that the kernel
forgets such a wish; so this process stays, and as the first of its namespace takes what it has started with it.

    python -I -S _jailed.py '{"home": .., "root": "/../root", "binds": [[source, name, writable]..], "argv": [..]}'

Needs only the standard library, and imports nothing of agentenv.
"""

import ctypes
import json
import os
import sys

_CLONE_NEWNS = 0x20000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_REMOUNT, _MS_BIND, _MS_REC, _MS_SLAVE = 32, 4096, 16384, 1 << 19


def main() -> None:
    plan = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            code = ctypes.get_errno()
            sys.exit(f"agentenv: cannot {what}: {os.strerror(code)}")

    def mount(source: str, target: str, flags: int) -> None:
        result = libc.mount(os.fsencode(source), os.fsencode(target), b"none", ctypes.c_ulong(flags), None)
        check(result, f"show {source} in the jail")

    if os.getpid() != 1:
        sys.exit("agentenv: cannot make a jail: expected to be the first process of a pid namespace")
    check(libc.unshare(_CLONE_NEWNS), "make a private mount namespace")
    mount("none", "/", _MS_REC | _MS_SLAVE)
    # Directories for temporary files are often mounted without devices and programs, and a jail needs both.
    mount(plan["home"], plan["home"], _MS_BIND)
    mount("none", plan["home"], _MS_BIND | _MS_REMOUNT | _MS_NOSUID)
    os.makedirs(plan["root"], mode=0o700)
    for source, name, writable in plan["binds"]:
        target = os.path.join(plan["root"], name)
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        mount(source, target, _MS_BIND)
        if not writable:
            mount("none", target, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    jailer = os.fork()
    if jailer == 0:
        os.execve(plan["argv"][0], plan["argv"], {})
    while True:
        pid, status = os.wait()
        if pid == jailer:
            os._exit(abs(os.waitstatus_to_exitcode(status)))


main()
