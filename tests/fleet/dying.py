"""An environment that goes wrong in the way it is told to, imported by name inside the sandboxes of the tests."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Dying(gymnasium.Env[Any, Any]):
    observation_space: Any = spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space: Any = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def nothing(self) -> int:
        return 7

    def spin(self) -> None:
        while True:
            pass

    def sleep_in_python(self) -> None:
        time.sleep(3600)

    def deadlock(self) -> None:
        lock = threading.Lock()
        holder = threading.Thread(target=self.hold, args=(lock,), daemon=True)
        holder.start()
        while not lock.locked():
            pass
        lock.acquire()

    def hold(self, lock: threading.Lock) -> None:
        with lock:
            time.sleep(3600)

    def read_in_native_code(self) -> None:
        # With the interpreter lock held: no Python thread of the process can run.
        reader, self.writer = os.pipe()
        ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)

    def sleep_in_native_code(self) -> None:
        # Any signal ends this sleep early, and with it the method.
        ctypes.PyDLL(None).sleep(3600)

    def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def ignore_signals(self) -> None:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, 32, 33}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_IGN)
        time.sleep(3600)

    def redirect_and_spin(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        self.spin()

    def hog(self, mb: int) -> None:
        self.hogged = np.ones(mb << 17)

    def fill(self, path: str, mb: int) -> None:
        with open(path, "wb", buffering=0) as file:
            for _ in range(mb):
                file.write(bytes(1 << 20))

    def map_shared_memory(self, mb: int, count: int) -> None:
        for number in range(count):
            np.memmap(f"/dev/shm/{number}", np.uint8, "w+", shape=(mb << 20,))[...] = 1

    def segfault(self) -> None:
        ctypes.string_at(0)

    def abort(self) -> None:
        os.abort()

    def leave(self, code: int) -> None:
        print("leaving", flush=True)
        os._exit(code)

    def say(self, text: str) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.write(text)
            stream.flush()
