"""Variables that a vendor's library reads, while it reads them.

In: names and values. Out: the process's environment as it was.
Never: overrules what the user has set.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def environment(ours: dict[str, str]) -> Iterator[None]:
    """Variables that a vendor reads meanwhile; what the user has set stays as it is."""
    unset = {name: value for name, value in ours.items() if name not in os.environ}
    os.environ.update(unset)
    try:
        yield
    finally:
        for name in unset:
            del os.environ[name]
