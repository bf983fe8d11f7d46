"""The thread that reads every environment's output, against real processes that behave badly."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentenv.errors import ClosedError
from agentenv.telemetry.logs import LogPump, LogSink, shared_pump

_DEADLINE_S = 60.0


class WatchedSink(LogSink):
    """A sink that a test can wait for."""

    def __init__(self, path: Path | None = None, **sizes: int) -> None:
        super().__init__(path, **sizes)
        self._changed = threading.Condition()

    def write(self, data: bytes) -> None:
        super().write(data)
        with self._changed:
            self._changed.notify_all()

    def wait(self, wanted: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(wanted, _DEADLINE_S), f"got only {self.received_bytes} bytes"


@pytest.fixture
def pump() -> Iterator[LogPump]:
    with LogPump() as pump:
        yield pump


def _launch(pump: LogPump, sink: LogSink, *command: str) -> subprocess.Popen[bytes]:
    read_end, write_end = os.pipe()
    pump.attach(read_end, sink)
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=write_end)
    finally:
        os.close(write_end)


def _open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def _log_threads() -> int:
    return sum(thread.name == "agentenv-logs" for thread in threading.enumerate())


def test_output_reaches_file_and_tail(tmp_path: Path, pump: LogPump) -> None:
    sink = WatchedSink(tmp_path / "stdout.log")
    with _launch(pump, sink, "printf", "hello\\nworld\\n"):
        sink.wait(lambda: sink.received_bytes == 12)
    assert sink.tail() == "hello\nworld"
    sink.close()
    assert (tmp_path / "stdout.log").read_bytes() == b"hello\nworld\n"


def test_a_flood_of_a_gigabyte_of_nuls(tmp_path: Path, pump: LogPump) -> None:
    size = 2**30
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sink = WatchedSink(tmp_path / "stdout.log", max_bytes=2**20)
    with _launch(pump, sink, "head", "-c", str(size), "/dev/zero") as process:
        sink.wait(lambda: sink.received_bytes == size)
        assert process.wait(_DEADLINE_S) == 0
    sink.close()
    parts = [part.stat().st_size for part in tmp_path.iterdir()]
    assert len(parts) == 3
    assert max(parts) <= 2**20
    assert sink.lost_bytes == 0
    assert len(sink._tail) == 16 * 2**10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb < 32 * 2**10


def test_a_flood_does_not_starve_siblings(pump: LogPump) -> None:
    flood = WatchedSink()
    with _launch(pump, flood, "yes", "flood") as flooder:
        try:
            flood.wait(lambda: flood.received_bytes > 2**20)
            for i in range(20):
                quiet = WatchedSink()
                with _launch(pump, quiet, "echo", f"sibling {i}"):
                    quiet.wait(lambda quiet=quiet: quiet.received_bytes > 0)  # type: ignore[misc]  # a default binds it
                assert quiet.tail() == f"sibling {i}"
            # It was flooding all the while, and still is.
            seen = flood.received_bytes
            flood.wait(lambda: flood.received_bytes > seen + 2**20)
        finally:
            flooder.kill()


def test_one_thread_for_hundreds_and_no_descriptor_left() -> None:
    with LogPump() as warm:
        warm.start()
    before = _open_fds()
    sinks = [WatchedSink() for _ in range(300)]
    with LogPump() as pump:
        assert _log_threads() == 0
        writers = []
        for sink in sinks:
            read_end, write_end = os.pipe()
            pump.attach(read_end, sink)
            writers.append(write_end)
        pump.start()
        assert _log_threads() == 1
        for i, write_end in enumerate(writers):
            os.write(write_end, b"%d" % i)
            os.close(write_end)
        for sink in sinks:
            sink.wait(lambda sink=sink: sink.received_bytes > 0)  # type: ignore[misc]  # a default binds it
    assert [sink.tail() for sink in sinks] == [str(i) for i in range(300)]
    assert _open_fds() == before
    assert _log_threads() == 0


def test_drain_reads_the_last_words_at_once() -> None:
    sink = LogSink(None)
    with LogPump() as pump:
        read_end, write_end = os.pipe()
        pump.attach(read_end, sink)
        # The writer stays open, as when a grandchild still holds it: drain must not wait for the end.
        os.write(write_end, b"last words")
        pump.drain(sink)
        assert sink.tail() == "last words"
        pump.drain(sink)
        os.close(write_end)


def test_drain_is_bounded_while_somebody_keeps_writing(pump: LogPump) -> None:
    sink = LogSink(None)
    with _launch(pump, sink, "yes") as process:
        try:
            pump.drain(sink)
        finally:
            process.kill()


def test_close_takes_what_is_left_and_is_idempotent() -> None:
    sink = LogSink(None)
    pump = LogPump()
    read_end, write_end = os.pipe()
    pump.attach(read_end, sink)
    os.write(write_end, b"x" * 60_000)
    pump.close()
    pump.close()
    assert sink.received_bytes == 60_000
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"nobody reads")
    os.close(write_end)
    with pytest.raises(ClosedError, match="make a new one"):
        pump.start()


def test_detach_closes_and_stops(pump: LogPump) -> None:
    sink = LogSink(None)
    read_end, write_end = os.pipe()
    pump.attach(read_end, sink)
    pump.detach(read_end)
    pump.detach(read_end)
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"x")
    os.close(write_end)
    assert sink.received_bytes == 0


def test_a_number_used_anew_belongs_to_the_new_stream(pump: LogPump) -> None:
    for i in range(200):
        old, new = LogSink(None), WatchedSink()
        read_end, write_end = os.pipe()
        pump.attach(read_end, old)
        pump.detach(read_end)
        os.close(write_end)
        again, write_end = os.pipe()
        pump.attach(again, new)
        os.write(write_end, b"%d" % i)
        os.close(write_end)
        new.wait(lambda new=new: new.received_bytes > 0)  # type: ignore[misc]  # a default binds it
        assert (old.received_bytes, new.tail()) == (0, str(i))


def test_a_sink_that_fails_harms_only_its_own_stream(pump: LogPump, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(LogSink):
        def write(self, data: bytes) -> None:
            raise MemoryError("no room")

    read_end, write_end = os.pipe()
    pump.attach(read_end, Broken(None))
    os.write(write_end, b"x")
    sink = WatchedSink()
    with _launch(pump, sink, "echo", "fine"):
        sink.wait(lambda: sink.received_bytes > 0)
    pump.close()
    assert "no longer read" in caplog.text
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"x")
    os.close(write_end)


def test_what_cannot_be_watched_stays_with_the_caller(tmp_path: Path, pump: LogPump) -> None:
    with (tmp_path / "file").open("w+b") as file:
        with pytest.raises(ValueError, match="expected the read end of a pipe or socket"):
            pump.attach(file.fileno(), LogSink(None))
        os.fstat(file.fileno())
    with pytest.raises(ValueError, match="expected the read end of a pipe or socket, got descriptor -1"):
        pump.attach(-1, LogSink(None))
    read_end, write_end = os.pipe()
    pump.attach(read_end, LogSink(None))
    with pytest.raises(ValueError, match="not attached yet"):
        pump.attach(read_end, LogSink(None))
    os.close(write_end)


def test_the_shared_pump_is_one() -> None:
    pump = shared_pump()
    assert shared_pump() is pump
    pump.close()
    assert shared_pump() is not pump


_FORK = textwrap.dedent(
    """
    import os, sys, threading
    from agentenv.errors import ClosedError
    from agentenv.telemetry.logs import LogPump, LogSink, shared_pump

    class Seen(LogSink):
        def write(self, data):
            super().write(data)
            self.seen.set()

    pump, sink = shared_pump(), Seen(None)
    sink.seen = threading.Event()
    read_end, write_end = os.pipe()
    pump.attach(read_end, sink)
    sink.mark("before")
    # The worst moment: locks are held by a thread that the child will not have.
    sink._lock.acquire(); pump._lock.acquire()
    pid = os.fork()
    if pid == 0:
        try:
            assert sink.tail() == "--- agentenv: before ---"
            sink.write(b"from the child"); sink.close()
            pump.drain(sink); pump.detach(read_end); pump.close()
            try:
                pump.attach(read_end, sink)
            except ClosedError:
                pass
            else:
                raise AssertionError("attached in the child")
            try:
                os.fstat(read_end)
            except OSError:
                pass
            else:
                raise AssertionError("the child holds the read end")
            own, mine = LogSink(None), shared_pump()
            assert mine is not pump
            other, end = os.pipe()
            mine.attach(other, own)
            os.write(end, b"own")
            mine.close()
            assert own.tail() == "own", own.tail()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    sink._lock.release(); pump._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    # The child's leaving took nothing out of the epoll set that both share: the thread itself still sees this.
    os.write(write_end, b"after")
    assert sink.seen.wait(30), "the parent's thread no longer watches its pipe"
    os.close(write_end)
    pump.close()
    assert sink.tail().endswith("after"), sink.tail()
    """
)


def test_a_forked_child_is_inert_and_the_parent_goes_on() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
