"""A script that ends without destroy_process_group exits with status 0."""

from __future__ import annotations

import threading

from hetsim.ddp import hook


def test_an_exit_waits_until_threads_have_released_their_callbacks() -> None:
    """A thread that takes a callback's last reference while Python exits would abort the process."""
    released = threading.Event()

    class Callback:
        def __call__(self, _: object) -> None: ...

        def __del__(self) -> None:
            released.set()

    held = [Callback()]
    hook._callbacks.add(held[0])
    thread = threading.Timer(0.02, held.clear)
    thread.start()
    hook.wait_for_callbacks()

    assert released.is_set()
    thread.join()
