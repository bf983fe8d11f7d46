"""What may cross the sandbox boundary: plain values, spaces, and the byte layout of both.

Everything here turns objects into bytes and bytes, written by somebody hostile, back into objects. It opens no socket,
imports nothing by name, evaluates nothing and unpickles nothing. The same modules run on the host and in the guest.
"""
