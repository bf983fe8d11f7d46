"""Run as a program: boot a guest of a hundred bytes through /dev/kvm and say whether it came to its end.

It does in small what every kernel does first: from real mode to protected to long mode, with page tables, and an
interrupt taken and returned from. On a host whose KVM runs only guests made for it, the device opens and every call
succeeds, and such a guest may spin for ever: so it is run in a process of its own, which ends when it has used up some
seconds of processor time. (Time on the clock would prove nothing: the host may be busy.)

    python -I -S _kvmtry.py [/dev/kvm]

Prints one line: "works", or what failed. Needs only the standard library, and imports nothing of agentenv. The
numbers are those of Linux's <linux/kvm.h> for x86-64.
"""

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import struct
import sys

_GET_API_VERSION, _CREATE_VM, _GET_VCPU_MMAP_SIZE, _GET_SUPPORTED_CPUID = 0xAE00, 0xAE01, 0xAE04, 0xC008AE05
_CREATE_VCPU, _SET_TSS_ADDR, _CREATE_IRQCHIP = 0xAE41, 0xAE47, 0xAE60
_SET_USER_MEMORY_REGION, _RUN = 0x4020AE46, 0xAE80
_SET_REGS, _GET_SREGS, _SET_SREGS, _SET_CPUID2 = 0x4090AE82, 0x8138AE83, 0x4138AE84, 0x4008AE90
_EXIT_IO, _ANSWER, _PORT = 2, 42, 0x3F8
_MOST_CPU_S = 3
_MEMORY = 2 << 20
_CODE, _TABLES, _INTERRUPTS, _HANDLER = 0x1000, 0x2000, 0x5000, 0x1067

# GNU as, Intel syntax; linked at 0x1000:
#   .code16   cli; lgdt [0x1090]; mov eax, cr0; or al, 1; mov cr0, eax; ljmp 0x08, 0x1013
#   .code32   mov ax, 0x10; mov ds, ax; mov es, ax; mov ss, ax; mov eax, cr4; or eax, 0x20; mov cr4, eax
#             mov eax, 0x2000; mov cr3, eax; mov ecx, 0xc0000080; rdmsr; or eax, 0x100; wrmsr
#             mov eax, cr0; or eax, 0x80000000; mov cr0, eax; ljmp 0x18, 0x104e
#   .code64   mov esp, 0x8000; lidt [0x1096]; xor ebx, ebx; int3; mov edx, 0x3f8; mov eax, ebx; out dx, al; hlt
#   0x1067    mov bl, 42; iretq
#   0x1070    the descriptors: none, code 32, data, code 64; then the two pointers for lgdt and lidt
_GUEST = bytes.fromhex(
    "fa0f011690100f20c00c010f22c0ea1310080066b810008ed88ec08ed00f20e0"
    "83c8200f22e0b8002000000f22d8b9800000c00f320d000100000f300f20c00d"
    "000000800f22c0ea4e1000001800bc008000000f011c259610000031dbccbaf8"
    "03000089d8eef4b32a48cf0f1f4400000000000000000000ffff0000009acf00"
    "ffff00000092cf00ffff0000009aaf001f00701000003f000050000000000000"
)


def main(device: str) -> str:
    kvm = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    version = fcntl.ioctl(kvm, _GET_API_VERSION)
    if version != 12:
        return f"expected version 12 of the KVM interface, got {version}"
    vm = fcntl.ioctl(kvm, _CREATE_VM, 0)
    fcntl.ioctl(vm, _SET_TSS_ADDR, 0x10000000)
    fcntl.ioctl(vm, _CREATE_IRQCHIP)
    memory = mmap.mmap(-1, _MEMORY)
    memory[_CODE : _CODE + len(_GUEST)] = _GUEST
    # Identity: one entry in each of the upper levels, and one page of 2 MiB.
    for level, entry in enumerate((0x3003, 0x4003, 0x83)):
        struct.pack_into("<Q", memory, _TABLES + level * 0x1000, entry)
    struct.pack_into("<HHHHQ", memory, _INTERRUPTS + 3 * 16, _HANDLER, 0x18, 0x8E00, 0, 0)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(vm, _SET_USER_MEMORY_REGION, struct.pack("<IIQQQ", 0, 0, 0, _MEMORY, address))
    cpu = fcntl.ioctl(vm, _CREATE_VCPU, 0)
    state = mmap.mmap(cpu, fcntl.ioctl(kvm, _GET_VCPU_MMAP_SIZE))
    features = bytearray(8 + 256 * 40)
    struct.pack_into("<I", features, 0, 256)
    fcntl.ioctl(kvm, _GET_SUPPORTED_CPUID, features)
    fcntl.ioctl(cpu, _SET_CPUID2, features)
    special = bytearray(0x138)
    fcntl.ioctl(cpu, _GET_SREGS, special)
    struct.pack_into("<QIH", special, 0, 0, 0xFFFF, 0)  # cs: base, limit, selector
    fcntl.ioctl(cpu, _SET_SREGS, bytes(special))
    fcntl.ioctl(cpu, _SET_REGS, struct.pack("<18Q", *[0] * 16, _CODE, 2))
    limit = int(sum(os.times()[:2])) + 1 + _MOST_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    fcntl.ioctl(cpu, _RUN)
    reason = struct.unpack_from("<I", state, 8)[0]
    if reason != _EXIT_IO:
        return f"the guest stopped for reason {reason} before its end"
    _direction, _size, port, _count, offset = struct.unpack_from("<BBHIQ", state, 32)
    if (port, state[offset]) != (_PORT, _ANSWER):
        return f"expected {_ANSWER} at port {_PORT:#x}, got {state[offset]} at port {port:#x}"
    return "works"


signal.alarm(60)  # should whoever asks be gone by then
try:
    outcome = main(sys.argv[1] if len(sys.argv) > 1 else "/dev/kvm")
except OSError as error:
    outcome = f"{error.strerror} (error {error.errno})"
print(outcome)
