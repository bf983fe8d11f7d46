"""Runs in the machine of tools/kvmlab, whose kernel has a loopback for vsock: connects to the agent's port from inside.

It says as one JSON object what came of it, for each attempt of an ordinary user: what was answered to its hello.
"""

import json
import os
import socket
import subprocess
import sys

sys.path.insert(0, sys.argv[1])

from agentenv.guest.agent.ports import PORT, VsockPort
from agentenv.guest.pumping import Loop
from agentenv.wire.frames import HELLO, NONCE_BYTES

WORD = HELLO + bytes(NONCE_BYTES)
NOBODY = 65534


def attempt() -> str:
    """What a peer in this machine is answered; in a process of its own, because the port's is this one."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
        try:
            with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as stream:
                stream.settimeout(30)
                stream.connect((1, PORT))  # VMADDR_CID_LOCAL, linux/vm_sockets.h
                os.write(writer, b"connected, ")
                try:
                    stream.sendall(WORD)
                    answer = stream.recv(len(WORD))
                except ConnectionError:
                    answer = b""
                os.write(writer, b"obeyed" if answer else b"closed")
        except OSError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    done = False
    while not done:
        loop.turn(0.1)
        done = os.waitpid(-1, os.WNOHANG)[0] > 0
    with os.fdopen(reader) as stream:
        return stream.read()


subprocess.run(["modprobe", "vsock_loopback"], check=True)
welcomed: list = []
loop = Loop()
port = VsockPort(loop, welcomed.append)
descriptors = len(os.listdir("/proc/self/fd"))
said = [attempt() for _ in range(3)]
left = len(os.listdir("/proc/self/fd")) - descriptors
print(json.dumps({"said": said, "welcomed": welcomed, "descriptors left": left}))
