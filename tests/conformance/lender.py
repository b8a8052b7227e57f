"""A process that lends memory to a Mooncake store and does nothing else, until its standard input ends.

In: a connector's ``extra`` as JSON. Out: a line once the memory is lent.
Never: puts or gets.
"""

from __future__ import annotations

import asyncio
import json
import sys

import omni_async


async def main(extra: str) -> None:
    spec = {"name": "mooncake-store", "extra": json.loads(extra)}
    async with omni_async.open_transport(spec, role="sender", stage="lender"):
        print("lent", flush=True)  # noqa: T201
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
