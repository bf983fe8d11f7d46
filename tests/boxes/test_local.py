"""A sandbox that this process holds, and that several threads end."""

from __future__ import annotations

import threading

from agentenv.boxes.local import LocalAccess


class _Slow:
    """A sandbox, and its ground, whose end takes as long as the test wants."""

    def __init__(self) -> None:
        self.spec = self
        self.id = "web"
        self.begun, self.let = threading.Event(), threading.Event()
        self.order: list[str] = []

    def destroy(self) -> None:
        self.begun.set()
        assert self.let.wait(30)

    def release(self) -> None:
        self.order.append("everything is free")


def test_who_ends_it_second_returns_when_everything_is_free() -> None:
    slow = _Slow()
    access = LocalAccess(slow, slow)  # type: ignore[arg-type]  # stands in

    def follow() -> None:
        access.destroy()
        slow.order.append("the second is back")

    first, second = threading.Thread(target=access.destroy), threading.Thread(target=follow)
    first.start()
    assert slow.begun.wait(30)
    second.start()
    second.join(0.2)
    slow.let.set()
    for thread in (first, second):
        thread.join(30)
        assert not thread.is_alive()
    assert slow.order == ["everything is free", "the second is back"]


def test_a_handler_that_ends_it_in_the_middle_of_its_end_does_not_wait_for_itself() -> None:
    slow = _Slow()
    access = LocalAccess(slow, slow)  # type: ignore[arg-type]  # stands in
    slow.destroy = access.destroy  # type: ignore[method-assign]  # as a handler would call it
    access.destroy()
    assert slow.order == ["everything is free"]
