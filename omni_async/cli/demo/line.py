"""A process's line to the demo that started it.

In: a job and ``go``. Out: events.
Never: lets its process outlive the demo.
"""

from __future__ import annotations

import os
import shutil
import threading

from . import words


class Line:
    """Standard input and output, spoken in :mod:`words`."""

    def __init__(self, orders: int, events: int) -> None:
        """Read the job. Both are descriptors: a thread inside ``sys.stdin`` would hold its lock."""
        self._orders = orders
        self._events = events
        self._go = threading.Event()
        self.job = words.decode_job(self._order())
        # A thread, because it has to hear the end even while torch is imported.
        threading.Thread(target=self._listen, name="demo-line", daemon=True).start()

    def say(self, event: words.Event) -> None:
        """Tell the demo; one line, one write."""
        os.write(self._events, words.encode(event) + b"\n")

    def wait_for_go(self) -> None:
        """Say that all is ready and wait until the others are. Blocks."""
        self.say(words.Ready())
        self._go.wait()
        self._go.clear()  # the next one comes when this process is ready again

    def _order(self) -> bytes:
        """One line; empty when the demo is gone. It never says two at once."""
        order = b""
        while not order.endswith(b"\n"):
            piece = os.read(self._orders, 1 << 16)
            if not piece:
                return b""
            order += piece
        return order

    def _listen(self) -> None:
        while self._order():
            self._go.set()
        # The demo is gone, however it ended. What it would have removed is removed here.
        shutil.rmtree(self.job.work, ignore_errors=True)
        os._exit(1)
