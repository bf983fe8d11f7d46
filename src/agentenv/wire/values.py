"""Any value an environment may put into an info dict, as bytes and back.

The form is a little-endian u32 (length of the header), the header as ASCII JSON, zero padding to a multiple of 8, then
the raw bytes of arrays and byte strings in the order the header names them, each padded to 8.

In the header a JSON object is a dict with string keys, a number, string, true, false or null is itself, and a JSON
array is everything else: its first element is a tag. No value can imitate a tag, because lists are tagged as well. Raw
bytes are consumed in order and never addressed, so no byte is used twice and what comes out is bounded by what came in.

What has no form here (an open file, a class of the environment's own) becomes an ``Opaque``: its type and its repr as
text. Nothing is ever imported, called or evaluated on its behalf.
"""

from __future__ import annotations

from agentenv.wire.decoding import decode
from agentenv.wire.encoding import encode
from agentenv.wire.opaque import Opaque
from agentenv.wire.sink import MAX_DEPTH, MAX_HASHED

__all__ = ["MAX_DEPTH", "MAX_HASHED", "Opaque", "decode", "encode"]
