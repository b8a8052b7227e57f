"""Variables that a vendor's library reads, while it reads them.

In: names and values. Out: the process's environment as it was.
Never: overrules what the user has set, unless it is asked to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def environment(ours: dict[str, str], *, overrule: bool = False) -> Iterator[None]:
    """Variables that a vendor reads meanwhile; what the user has set stays as it is.

    Args:
        overrule: what the user has set counts for nothing meanwhile, and is there again afterwards.
    """
    before = {name: os.environ.get(name) for name in ours}
    changed = [name for name, value in before.items() if overrule or value is None]
    os.environ.update({name: ours[name] for name in changed})
    try:
        yield
    finally:
        for name in changed:
            value = before[name]
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
