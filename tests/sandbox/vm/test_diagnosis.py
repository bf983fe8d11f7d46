"""What is said of KVM, for each way in which it may not be there."""

from __future__ import annotations

import pytest

from agentenv.sandbox.runtimes._vm.diagnosis import DENIED, MISSING, Facts, diagnose

_INTEL, _AMD = frozenset({"vmx"}), frozenset({"svm"})
_VIRTUAL = frozenset({"hypervisor"})
_PVM = frozenset({"kvm", "kvm_pvm"})


def _facts(**given: object) -> Facts:
    return Facts("/dev/kvm", **{"machine": "x86_64", **given})  # type: ignore[arg-type]  # a table of them


TABLE = [
    (_facts(machine="aarch64"), "expected an x86-64 host, this is aarch64", "use an x86-64 host"),
    (
        _facts(opening=MISSING, flags=_VIRTUAL),
        "no /dev/kvm: this is a virtual machine, and nested virtualisation is off: its processor has neither vmx nor"
        " svm",
        "have the host of this virtual machine allow nested virtualisation",
    ),
    (
        _facts(opening=MISSING),
        "no /dev/kvm: the processor has no virtualisation: /proc/cpuinfo has neither vmx nor svm",
        "switch it on in the firmware (Intel VT-x, AMD-V or SVM)",
    ),
    (
        _facts(opening=MISSING, flags=_INTEL),
        "no /dev/kvm on this host, though the processor has virtualisation: its module is not loaded",
        "sudo modprobe kvm_intel;",
    ),
    (
        _facts(opening=MISSING, flags=_AMD | _VIRTUAL),
        "no /dev/kvm on this host, though the processor has virtualisation: its module is not loaded",
        "sudo modprobe kvm_amd;",
    ),
    (
        _facts(opening=MISSING, flags=_AMD, container=True),
        "no /dev/kvm in this container, though the processor has virtualisation",
        "start the container with --device /dev/kvm",
    ),
    (
        _facts(opening=DENIED, group="kvm", group_may=True),
        "this user may not open /dev/kvm (it belongs to group kvm)",
        "sudo usermod -aG kvm $USER, then log in anew",
    ),
    (
        _facts(opening=DENIED, group="kvm", group_may=True, member=True),
        "this user may not open /dev/kvm (it belongs to group kvm), and this process is not in that group yet, though"
        " its user is",
        "log in anew, or run: sg kvm -c '...'",
    ),
    (
        _facts(opening=DENIED, group="root"),
        "this user may not open /dev/kvm (it belongs to group root)",
        "sudo setfacl -m u:$USER:rw /dev/kvm, or sudo chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm",
    ),
    (
        _facts(opening="No such device", flags=_INTEL),
        "/dev/kvm cannot be opened: No such device",
        "its driver is not loaded or switched off: sudo modprobe kvm_intel, then dmesg | grep -i kvm",
    ),
    (
        _facts(outcome="it had not ended after 60 s", modules=_PVM, flags=_VIRTUAL),
        "/dev/kvm exists and opens, but runs no guest: it had not ended after 60 s",
        "this host's KVM is paravirtual (kvm_pvm) and runs only guests made for it",
    ),
    (
        _facts(outcome="it used up seconds of processor time and had not ended", flags=_INTEL | _VIRTUAL),
        "/dev/kvm exists and opens, but runs no guest: it used up seconds of processor time and had not ended",
        "this host is itself a virtual machine, whose virtualisation does not work",
    ),
    (
        _facts(outcome="the guest stopped for reason 17 before its end", flags=_AMD),
        "/dev/kvm exists and opens, but runs no guest: the guest stopped for reason 17 before its end",
        "dmesg | grep -i kvm may say why",
    ),
    (
        _facts(outcome="Device or resource busy (error 16)", flags=_INTEL, modules=_PVM),
        "/dev/kvm exists and opens, but runs no guest: Device or resource busy (error 16)",
        "another program has the processor's virtualisation: end it",
    ),
]


@pytest.mark.parametrize(("facts", "detail", "remedy"), TABLE, ids=[str(number) for number in range(len(TABLE))])
def test_each_cause_has_its_sentence_and_its_remedy(facts: Facts, detail: str, remedy: str) -> None:
    found = diagnose(facts)
    assert not found.works
    assert found.detail == detail
    assert found.remedy.startswith(remedy)


def test_what_works_needs_no_remedy() -> None:
    found = diagnose(_facts(outcome="works", flags=_INTEL))
    assert (found.works, found.detail, found.remedy) == (True, "a guest ran to its end through /dev/kvm", "")


def test_no_two_causes_are_told_alike() -> None:
    assert len({(diagnose(facts).detail, diagnose(facts).remedy) for facts, _, _ in TABLE}) == len(TABLE)
