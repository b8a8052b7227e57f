"""A process's line to the demo that started it.

In: a job and ``go``. Out: events.
Never: lets its process outlive the demo.
"""

from __future__ import annotations

import os
import shutil
import threading
from typing import BinaryIO

from . import words


class Line:
    """Standard input and output, spoken in :mod:`words`."""

    def __init__(self, orders: BinaryIO, events: BinaryIO) -> None:
        self._orders = orders
        self._events = events
        self._gone = threading.Event()
        self.job = words.decode_job(orders.readline())
        # A thread, because it has to hear the end even while torch is imported.
        threading.Thread(target=self._listen, name="demo-line", daemon=True).start()

    def say(self, event: words.Event) -> None:
        """Tell the demo; one line, one write."""
        self._events.write(words.encode(event) + b"\n")

    def wait_for_go(self) -> None:
        """Say that all is ready and wait until the others are. Blocks."""
        self.say(words.Ready())
        self._gone.wait()

    def _listen(self) -> None:
        while self._orders.readline():
            self._gone.set()
        # The demo is gone, however it ended. What it would have removed is removed here.
        shutil.rmtree(self.job.work, ignore_errors=True)
        os._exit(1)
