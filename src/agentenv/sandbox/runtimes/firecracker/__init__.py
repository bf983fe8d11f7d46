"""Machines run by Firecracker, which needs KVM."""
