"""``python -m omni_async.cli.bench``.

In: the command line. Out: the exit code.
Never: anything else.
"""

from __future__ import annotations

import sys

from . import main

sys.exit(main())
