"""Run as a program by root only: stop being root before bubblewrap starts.

Environments of a root user should not run as the machine's root, in whatever namespace. But the user they run as
instead often cannot reach root's own Python under /root. So: in a private mount namespace, bind what must be seen into
a staging directory that everybody can reach, become that user, and let bubblewrap take it from there. The namespace,
and with it every mount made here, ends with the sandbox.

    python -I -S _stage.py '{"uid": .., "gid": .., "staging": "/mnt", "binds": [[source, slot, owner]..], "argv": [..]}'

What is private to one user, its "owner" (or null), is shown to that user's place: in this view it belongs to whom the
environments run as. See mount_setattr(2), "ID-mapped mounts"; Linux 5.12, and a file system that can do it.

Needs only the standard library, and imports nothing of agentenv.
"""

import ctypes
import json
import os
import sys

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
_CLONE_NEWUSER = 0x10000000
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442  # on every architecture
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOUNT_ATTR_IDMAP = 1, 4, 0x100000
_AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH = -100, 0x8000, 0x1000


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
    for source, slot, owner in plan["binds"]:
        target = os.path.join(staging, slot)
        if os.path.isdir(source):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        if owner is None:
            mount(source, target, "none", _MS_BIND | _MS_REC, "")
        else:
            error = _give(libc, source, target, owner, plan["uid"], plan["gid"])
            if error:
                sys.exit(
                    f"agentenv: {source} of user {owner} cannot be shown to what runs as user {plan['uid']} instead:"
                    f" {os.strerror(error)}; have it on a file system with ID-mapped mounts"
                    " (ext4, xfs, btrfs; Linux 5.12 or newer), or start this as an ordinary user"
                )
    os.setgroups([])
    os.setresgid(plan["gid"], plan["gid"], plan["gid"])
    os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    os.execve(program, plan["argv"], {})


def _give(libc: ctypes.CDLL, source: str, target: str, owner: int, uid: int, gid: int) -> int:
    """Show a directory or a file with what an owner has in it as another user's; returns the error's number, or 0."""
    call = libc.syscall
    call.restype = ctypes.c_long
    users = _map_users(libc, (owner, os.stat(source).st_gid), (uid, gid))
    if users < 0:
        return ctypes.get_errno()
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
    tree = call(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags)
    if tree < 0:
        return ctypes.get_errno()
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_IDMAP, 0, 0, users)
    if call(_MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH | _AT_RECURSIVE, attributes, ctypes.sizeof(attributes)):
        return ctypes.get_errno()
    if call(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH):
        return ctypes.get_errno()
    return 0


def _map_users(libc: ctypes.CDLL, owners: tuple[int, int], shown: tuple[int, int]) -> int:
    """A descriptor of a user namespace that says who stands for whom, user and group; -1 with errno set."""
    made, over = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        failed = libc.unshare(_CLONE_NEWUSER) != 0
        os.write(made[1], bytes([ctypes.get_errno() if failed else 0]))
        os.close(over[1])
        os.read(over[0], 1)
        os._exit(0)
    os.close(made[1])
    try:
        error = os.read(made[0], 1)
        if error != b"\0":
            ctypes.set_errno(error[0] if error else 0)
            return -1
        for name, owner, other in zip(("uid_map", "gid_map"), owners, shown, strict=True):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(f"{owner} {other} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        ctypes.set_errno(failure.errno or 0)
        return -1
    finally:
        for fd in (made[0], *over):
            os.close(fd)
        os.waitpid(pid, 0)


main()
