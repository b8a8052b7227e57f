"""What UCX has for a moment: shared memory that is named until it is mapped.

In: traces. Out: whether one is such a name.
Never: takes a descriptor or a thread for one; of those nothing stays.

An agent that is being made, in this process or another one, has such a name while it opens and maps it. It
never uses it for payloads.
"""

from __future__ import annotations

from omni_async.testing.leaks import Trace


def kept(trace: Trace) -> bool:
    return trace.kind == "file" and trace.name.startswith("/dev/shm/ucx_shm_posix_")
