"""Stand-ins for what the peer's chunk adapter takes from vLLM: a request and a few names.

In: what the adapter sets on a request. Out: the same.
Never: does what an engine does; only attributes that the adapter reads or writes are here.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Sequence
from typing import Any


class RequestStatus(enum.IntEnum):
    WAITING = 0
    RUNNING = 1
    WAITING_FOR_CHUNK = 2
    FINISHED_STOPPED = 10


class Request:
    """One request of the scheduler's, without tokens."""

    def __init__(self, request_id: str) -> None:
        self.request_id = self.external_req_id = request_id
        self.additional_information: Any = None
        self.resumable = False
        self.prompt_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_prompt_tokens = 0
        self.status = RequestStatus.RUNNING
        self.finished = False
        self._all_token_ids: list[int] = []
        self._output_token_ids: list[int] = []

    def is_finished(self) -> bool:
        return self.finished


class ConstantList:
    """A list that is only read."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __getitem__(self, index: int) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


def quiet(name: str) -> logging.Logger:
    """A logger that says errors only: its own words are not to slow it down."""
    logger = logging.getLogger(name)
    logger.setLevel(logging.ERROR)
    return logger
