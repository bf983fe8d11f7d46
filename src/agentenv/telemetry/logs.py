"""The output of environments: how it is kept, read back and shown.

    pipe -> LogPump -> LogSink -> stdout.log, stdout.log.1, ... -> read_log / follow -> printable_stream -> terminal

The parts live in modules of their own; this one is their door and holds no code.
"""

from __future__ import annotations

from agentenv.telemetry.logfiles import follow, log_parts, read_log
from agentenv.telemetry.pump import LogPump, shared_pump
from agentenv.telemetry.sink import LogSink
from agentenv.telemetry.text import one_line, printable, printable_stream

__all__ = [
    "LogPump",
    "LogSink",
    "follow",
    "log_parts",
    "one_line",
    "printable",
    "printable_stream",
    "read_log",
    "shared_pump",
]
