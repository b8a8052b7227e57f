"""A process that never rests: ``python -m tests.cases.burner FD``.

In: nothing. Out: one word when it has begun.
Never: ends by itself before its line does.
"""

from __future__ import annotations

import socket
import sys

from omni_async.cli.bench.line import Line


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    line = Line(sock)
    line.receive()
    line.send("burning")
    sock.setblocking(False)
    while True:
        sum(range(10_000))
        try:
            if not sock.recv(1):
                return
        except BlockingIOError:
            continue


if __name__ == "__main__":
    main()
