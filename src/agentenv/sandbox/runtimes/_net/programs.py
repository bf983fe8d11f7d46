"""The programs that set networks up, each given a batch of commands on its standard input; never a shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from agentenv.errors import RuntimeUnavailable

_INSTALL = "apt-get install iproute2 nftables (Debian, Ubuntu), dnf install iproute iproute-tc nftables (Fedora)"
_CAP_NET_ADMIN, _CAP_SYS_ADMIN = 12, 21
_PLACES = "/usr/sbin:/sbin:/usr/bin:/bin"
_TIMEOUT_S = 30.0
_MOST_SAID = 600


@dataclass(frozen=True, slots=True)
class Programs:
    """Paths of them."""

    ip: str
    tc: str
    nft: str

    def links(self, *commands: str) -> None:
        """Have ``ip`` carry out commands, in order.

        Raises:
            NetworkError: It refuses one; those before it are carried out.
        """
        _run([self.ip, "-batch", "-"], commands)

    def limits(self, *commands: str) -> None:
        """Have ``tc`` carry out commands, in order."""
        _run([self.tc, "-batch", "-"], commands)

    def rules(self, *commands: str) -> None:
        """Have ``nft`` carry out commands: all or none of them."""
        _run([self.nft, "-f", "-"], commands)

    def show(self, *words: str) -> list[dict[str, Any]]:
        """What ``ip`` lists."""
        found = json.loads(_run([self.ip, "-j", "-4", *words], ()) or "[]")
        return [one for one in found if isinstance(one, dict)]

    def listed(self, *words: str) -> list[dict[str, Any]]:
        """What ``nft`` lists."""
        found = json.loads(_run([self.nft, "-j", "list", *words], ()) or "{}")
        return [one for one in found.get("nftables", ()) if isinstance(one, dict)]


class NetworkError(RuntimeUnavailable):
    """A program that sets networks up refused.

    Attributes:
        said: Its own words.
        missing: Whether that is because what was named is not there, as where another process was faster.
    """

    def __init__(self, program: str, said: str) -> None:
        self.said = said
        self.missing = "No such file or directory" in said
        super().__init__(f"{program} refused: {said}", _remedy(said))


def find_programs() -> Programs:
    """Find them, and see that they may do their work.

    Raises:
        RuntimeUnavailable: One is missing, or this process may not make networks.
    """
    found = {name: shutil.which(name, path=_path()) for name in ("ip", "tc", "nft")}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise RuntimeUnavailable(f"networks of machines need {', '.join(missing)}, not found on PATH", _INSTALL)
    if not may_administer():
        raise RuntimeUnavailable(
            "networks of machines need root (CAP_NET_ADMIN and CAP_SYS_ADMIN), which this process has not",
            'be root, or set network = "none"',
        )
    if not os.path.exists("/dev/net/tun"):
        raise RuntimeUnavailable("there is no /dev/net/tun", "modprobe tun; in a container: show it the device")
    return Programs(**{name: path for name, path in found.items() if path is not None})


def may_administer() -> bool:
    """Whether this process may make network namespaces and devices, as far as its capabilities say."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            held = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    except (OSError, StopIteration):
        return False
    return all(held >> number & 1 for number in (_CAP_NET_ADMIN, _CAP_SYS_ADMIN))


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{_PLACES}"


def _run(argv: list[str], commands: tuple[str, ...]) -> str:
    name = os.path.basename(argv[0])
    try:
        done = subprocess.run(
            argv,
            input="".join(f"{command}\n" for command in commands),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
            env={"PATH": _path(), "LANG": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(name, str(error)) from error
    if done.returncode != 0:
        raise NetworkError(name, (done.stderr.strip() or f"exit status {done.returncode}")[:_MOST_SAID])
    return done.stdout


def _remedy(said: str) -> str:
    if "Operation not supported" in said or "Unknown device type" in said:
        return "the kernel lacks a part: modprobe veth tun nf_tables nft_ct nft_nat nft_masq nft_reject_inet sch_tbf"
    if "Operation not permitted" in said:
        return "be root; in a container: give it CAP_NET_ADMIN and CAP_SYS_ADMIN"
    return ""
