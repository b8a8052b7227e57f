"""Which monotonic clock this process reads.

In: what the kernel says of itself. Out: a number that two processes share when their clocks do.
Never: reads the clock.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os

BOOT = "/proc/sys/kernel/random/boot_id"
NAMESPACE = "/proc/self/ns/time"
"""A container may have its own offset to the kernel's clock: it is in another time namespace."""


@functools.cache
def clock_id() -> int:
    """48 bits that are the same in processes of one boot of one host; 0 where nothing can be said."""
    try:
        with open(BOOT, encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        return 0
    with contextlib.suppress(OSError):  # a kernel without time namespaces has one clock
        boot += os.readlink(NAMESPACE)
    return int.from_bytes(hashlib.blake2b(boot.encode(), digest_size=6).digest(), "big")
