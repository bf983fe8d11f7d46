"""Hostile environments: what the attack suite runs inside a sandbox.

Everything here runs on the other side of the wall. It uses what any program there has (system calls, /proc, its
descriptors) and nothing of the guest's internals, so that a change of those does not disarm it. An attempt tries to get
out and reports what it reached; a wreck tries to take the host or a neighbour along; a lie speaks the protocol wrongly.
"""
