"""Run as a program by root only: stop being root before bubblewrap starts.

Environments of a root user should not run as the machine's root, in whatever namespace. But the user they run as
instead often cannot reach root's own Python under /root. So: in a private mount namespace, bind what must be seen into
a staging directory that everybody can reach, become that user, and let bubblewrap take it from there. The namespace,
and with it every mount made here, ends with the sandbox.

    python -I -S _stage.py '{"uid": .., "gid": .., "staging": "/mnt", "binds": [[source, slot]..], "argv": [..]}'

Needs only the standard library, and imports nothing of agentenv.
"""

import ctypes
import json
import os
import sys

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18


def main() -> None:
    plan = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            code = ctypes.get_errno()
            sys.exit(f"agentenv: cannot {what}: {os.strerror(code)}")

    def mount(source: str, target: str, kind: str, flags: int, data: str) -> None:
        check(
            libc.mount(os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode()),
            f"mount {source} on {target}",
        )

    staging = plan["staging"]
    program = os.open(plan["argv"][0], os.O_PATH | os.O_CLOEXEC)
    check(libc.unshare(_CLONE_NEWNS), "make a private mount namespace")
    mount("none", "/", "none", _MS_REC | _MS_PRIVATE, "")
    mount("tmpfs", staging, "tmpfs", 0, "mode=755,size=1m")
    for source, slot in plan["binds"]:
        target = os.path.join(staging, slot)
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(source, target, "none", _MS_BIND | _MS_REC, "")
    os.setgroups([])
    os.setresgid(plan["gid"], plan["gid"], plan["gid"])
    os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    os.execve(program, plan["argv"], {})


main()
