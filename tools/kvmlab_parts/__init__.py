"""The parts of tools/kvmlab, which runs a command in an emulated machine that has KVM.

Standard library only: it has to run before anything of the project is installed. ``cli`` reads the command line,
``assets`` gets what a machine needs, ``qemu`` starts one, ``relay`` carries streams and signals until it ends. In the
machine, ``init.sh`` and then ``guest.sh`` are the first process.
"""
