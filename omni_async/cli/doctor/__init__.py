"""``omni-async doctor``: whether this host has what backends, or a deploy file, need.

One file for each job: the command (`command`), what is asked of which backend (`questions`), a process for
each backend and its end of the line (`asking`, `process`), what a deploy file means on this host (`stages`,
`room`), addresses and ports (`network`), the report (`report`). What a vendor needs its own folder knows:
`Backend.examine`.
"""

from __future__ import annotations

from .command import HELP, NAME, configure, run

__all__ = ["HELP", "NAME", "configure", "run"]
