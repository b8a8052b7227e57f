"""One process of the demo: its stages, or the check.

In: a job on standard input. Out: events on standard output, logs on standard error.
Never: decides anything; the exit status is 0 only when the job is done.

Run as ``python -m omni_async.cli.demo.process NAME``; the name is for whoever looks at ``ps``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback

from omni_async import OmniAsyncError

from . import words
from .causes import innermost
from .line import Line


def main() -> int:
    events = os.dup(1)
    os.dup2(2, 1)  # whatever else prints must not get between the events
    # A stream that fails ends its stage, which tells why: once, not for each of its requests.
    logging.getLogger("omni_async").setLevel(logging.ERROR)
    line = Line(0, events)
    try:
        line.say(_done(line))
    except Exception as error:  # noqa: BLE001 - told, and the process ends
        cause = innermost(error)
        if not isinstance(cause, OmniAsyncError):
            traceback.print_exception(cause)
        line.say(words.Failed(f"{type(cause).__name__}: {cause}"))
        return 1
    return 0


def _done(line: Line) -> words.Done:
    import torch

    torch.set_num_threads(1)  # one core for each process
    if not line.job.stages:
        from .check import check

        return check(line)
    from .pipeline import run_stages

    return asyncio.run(run_stages(line))


if __name__ == "__main__":
    sys.exit(main())
