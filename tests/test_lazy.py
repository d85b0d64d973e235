"""Properties that are made once."""

from __future__ import annotations

import threading

from unstride._lazy import lazy


class Thing:
    def __init__(self) -> None:
        self.made, self.both = 0, threading.Barrier(1)

    @lazy
    def value(self) -> object:
        """A new object."""
        self.both.wait(10)
        self.made += 1
        return object()


def test_it_is_made_once_for_each_instance() -> None:
    first, second = Thing(), Thing()
    assert first.value is first.value
    assert first.value is not second.value
    assert first.made == 1
    assert isinstance(Thing.value, lazy)
    assert Thing.value.__doc__ == "A new object."


def test_threads_that_make_it_at_once_use_one() -> None:
    thing = Thing()
    thing.both = threading.Barrier(2)
    found: list[object] = []
    workers = [threading.Thread(target=lambda: found.append(thing.value)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert thing.made == 2
    assert found[0] is found[1] is thing.value
