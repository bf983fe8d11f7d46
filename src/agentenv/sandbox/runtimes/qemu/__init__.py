"""Machines run by QEMU, with KVM or without."""
