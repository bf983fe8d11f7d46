"""What a virtual machine boots from: root file systems, kernels, first file systems and drives, kept in one store.

Everything is made once, named by the digest of its content, and handed to runtimes as paths. Nothing here starts a
machine, mounts anything or needs root.
"""
