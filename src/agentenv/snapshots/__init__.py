"""Snapshots of machines, kept on the disk: whole, or as what changed since another one.

Nothing here starts or pauses a machine; directories of files come in, and the same files go out, bit for bit or not
at all.
"""
