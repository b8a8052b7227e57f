"""What ``get`` returns.

In: a decoded value and the memory it lies in. Out: the value, until it is released.
Never: invalidates memory that somebody still has a view of.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ..errors import UsageError


class Delivery:
    """A received payload.

    ``value`` has the types that were put; its tensors and arrays are views of pool memory. The memory
    goes back by itself when the last view dies, from any thread. :meth:`release`, or the end of
    ``with delivery:``, gives up the delivery's own hold; views taken out of it before stay valid.
    """

    __slots__ = ("_hold", "_released", "_value", "key", "nbytes")

    def __init__(self, value: Any, nbytes: int, key: str, hold: Any = None) -> None:
        self._value = value
        self._hold = hold
        self._released = False
        self.nbytes = nbytes
        """Size of the payload in bytes, as ``Receipt.nbytes`` told it."""
        self.key = key

    @property
    def value(self) -> Any:
        """The payload.

        Raises:
            UsageError: the delivery was released.
        """
        if self._released:
            raise UsageError(
                f"the delivery of {self.key!r} was released; keep its value before that"
            )
        return self._value

    def release(self) -> None:
        """Give up this delivery's hold. Idempotent, callable from any thread."""
        self._released = True
        self._value = self._hold = None

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._released else type(self._value).__name__
        return f"<Delivery of {self.key!r}: {state}, {self.nbytes} bytes>"
