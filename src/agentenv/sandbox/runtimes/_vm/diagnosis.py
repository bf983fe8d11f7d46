"""From what was found about KVM on a host to what is the matter with it, and what to do.

Pure: ``accelerator`` looks, this says. Each cause has a sentence of its own, because each has a remedy of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentenv.sandbox.runtimes._vm.trials import WORKS

MISSING, DENIED = "missing", "denied"
_NESTED = (
    "have the host of this virtual machine allow nested virtualisation, or take one that does: libvirt and Proxmox have"
    ' the processor type "host" with kvm_intel or kvm_amd nested=1, WSL 2 nestedVirtualization=true, Hyper-V'
    " ExposeVirtualizationExtensions, clouds kinds of machines with it, or bare metal"
)


@dataclass(frozen=True, slots=True)
class Kvm:
    """What is known of KVM here.

    Attributes:
        works: Whether a guest ran to its end.
        detail: What was found.
        remedy: What would help where it does not work.
    """

    works: bool
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What was found on a host.

    Attributes:
        device: The device of KVM.
        machine: Kind of processor, as ``uname -m`` says.
        opening: "" where the device opens, "missing", "denied", or the system's words.
        group: The device's group.
        group_may: Whether that group may read and write it.
        member: Whether the user is in that group by the system's books, though this process is not.
        flags: Of the processor; "vmx" and "svm" are virtualisation, "hypervisor" is set in a virtual machine.
        modules: Kernel modules of KVM that are loaded.
        container: Whether this is a container.
        outcome: What came of running a guest: "works", or what went wrong. "" where it was not tried.
    """

    device: str
    machine: str
    opening: str = ""
    group: str = ""
    group_may: bool = False
    member: bool = False
    flags: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    container: bool = False
    outcome: str = ""


def diagnose(facts: Facts) -> Kvm:
    """What the matter is."""
    if facts.machine != "x86_64":
        return Kvm(False, f"expected an x86-64 host, this is {facts.machine}", "use an x86-64 host")
    if facts.opening == MISSING:
        return _missing(facts)
    if facts.opening == DENIED:
        return _denied(facts)
    if facts.opening:
        return Kvm(
            False,
            f"{facts.device} cannot be opened: {facts.opening}",
            f"its driver is not loaded or switched off: sudo modprobe {_module(facts)}, then dmesg | grep -i kvm",
        )
    if facts.outcome == WORKS:
        return Kvm(True, f"a guest ran to its end through {facts.device}")
    return _broken(facts)


def _missing(facts: Facts) -> Kvm:
    if not facts.flags & {"vmx", "svm"}:
        if "hypervisor" in facts.flags:
            detail = (
                f"no {facts.device}: this is a virtual machine, and nested virtualisation is off: its processor has"
                " neither vmx nor svm"
            )
            return Kvm(False, detail, _NESTED)
        return Kvm(
            False,
            f"no {facts.device}: the processor has no virtualisation: /proc/cpuinfo has neither vmx nor svm",
            "switch it on in the firmware (Intel VT-x, AMD-V or SVM) and start anew; a processor without it cannot",
        )
    if facts.container:
        return Kvm(
            False,
            f"no {facts.device} in this container, though the processor has virtualisation",
            f"start the container with --device {facts.device}",
        )
    return Kvm(
        False,
        f"no {facts.device} on this host, though the processor has virtualisation: its module is not loaded",
        f"sudo modprobe {_module(facts)}; where that fails, dmesg | grep -i kvm says why (mostly the firmware)",
    )


def _denied(facts: Facts) -> Kvm:
    detail = f"this user may not open {facts.device} (it belongs to group {facts.group})"
    if facts.member:
        return Kvm(
            False,
            f"{detail}, and this process is not in that group yet, though its user is",
            f"log in anew, or run: sg {facts.group} -c '...'",
        )
    if facts.group_may and facts.group != "root":
        return Kvm(False, detail, f"sudo usermod -aG {facts.group} $USER, then log in anew")
    remedy = f"sudo setfacl -m u:$USER:rw {facts.device}, or sudo chgrp kvm {facts.device} && sudo chmod 660"
    return Kvm(False, detail, f"{remedy} {facts.device}")


def _broken(facts: Facts) -> Kvm:
    detail = f"{facts.device} exists and opens, but runs no guest: {facts.outcome}"
    if "busy" in facts.outcome.lower():
        remedy = "another program has the processor's virtualisation: end it (VirtualBox, VMware, a debugger)"
        return Kvm(False, detail, remedy)
    if "kvm_pvm" in facts.modules:
        remedy = (
            "this host's KVM is paravirtual (kvm_pvm) and runs only guests made for it: use a host with full (nested)"
            " virtualisation; QEMU emulates here"
        )
        return Kvm(False, detail, remedy)
    if "hypervisor" in facts.flags:
        remedy = f"this host is itself a virtual machine, whose virtualisation does not work: {_NESTED}"
        return Kvm(False, detail, remedy)
    return Kvm(False, detail, "dmesg | grep -i kvm may say why; QEMU emulates here")


def _module(facts: Facts) -> str:
    return "kvm_amd" if "svm" in facts.flags else "kvm_intel" if "vmx" in facts.flags else "kvm_intel (or kvm_amd)"
