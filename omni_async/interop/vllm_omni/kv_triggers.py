"""When a stage of vLLM-Omni sends a request's KV cache, how much of it, and who waits for it.

In: a deploy file's criteria, counts of tokens, ids of requests. Out: how many tokens are to be sent, or not yet.
Never: looks into an engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...errors import ConfigError, UsageError

DUMMY_REQUEST = "dummy_req_id"
"""What a diffusion stage calls its warm-up; those of a batch go on with ``/``."""


class PrefillFinished(msgspec.Struct, frozen=True):
    """Send as soon as all of the prompt has been computed."""

    stop_after_transfer: bool = True
    """The request ends when its cache has been taken out."""


class SpecialToken(msgspec.Struct, frozen=True):
    """Send when this token was sampled: the cache up to it."""

    token_id: int
    stop_after_transfer: bool = True


Criteria = PrefillFinished | SpecialToken


def criteria_of(told: Mapping[str, Any] | None) -> Criteria | None:
    """A deploy file's ``kv_transfer_criteria``; ``None`` where a cache is sent when its request ends.

    Raises:
        ConfigError: it asks for something unknown.
    """
    if not told:
        return None
    path = "kv_transfer_criteria"
    stop = told.get("stop_after_transfer", True)
    if type(stop) is not bool:
        raise ConfigError(f"{path}.stop_after_transfer is {stop!r}, not true or false", path=path)
    kind = told.get("type")
    if kind == "prefill_finished":
        return PrefillFinished(stop)
    if kind == "special_token":
        token = told.get("token_id")
        if type(token) is not int or token < 0:
            raise ConfigError(f"{path}.token_id is {token!r}, not a token", path=path)
        return SpecialToken(token, stop)
    raise ConfigError(
        f"{path}.type is {kind!r}; known are 'prefill_finished' and 'special_token'", path=path
    )


def tokens_to_send(
    criteria: Criteria | None,
    *,
    prompt_tokens: int,
    computed_tokens: int,
    placeholders: int = 0,
    new_tokens: Sequence[int] = (),
) -> int | None:
    """How many tokens of a running request's cache are to be sent now; ``None`` for not yet.

    Args:
        prompt_tokens: of the request.
        computed_tokens: whose keys and values are in the cache, or will be after steps under way.
        placeholders: how many of these are under way still.
        new_tokens: sampled in this step.
    """
    confirmed = computed_tokens - placeholders
    if isinstance(criteria, PrefillFinished):
        return confirmed if confirmed >= prompt_tokens else None
    if isinstance(criteria, SpecialToken) and criteria.token_id in new_tokens:
        after = len(new_tokens) - (new_tokens.index(criteria.token_id) + 1)
        return confirmed - after
    return None


def blocks_to_send(block_ids: Sequence[int], tokens: int, block_size: int) -> list[int]:
    """The blocks that hold the first ``tokens`` tokens.

    Raises:
        UsageError: they do not hold so many.
    """
    if block_size < 1 or tokens < 1:
        raise UsageError(f"{tokens} tokens in blocks of {block_size}")
    count = -(-tokens // block_size)
    if len(block_ids) < count:
        raise UsageError(
            f"{tokens} tokens need {count} blocks of {block_size}, the request has {len(block_ids)}"
        )
    return list(block_ids[:count])


def needs_transfer(information: Mapping[str, Any] | None) -> bool:
    """Whether a request goes beyond the first stage, by its ``additional_information``."""
    if not information or information.get("omni_final_stage_id") != 0:
        return True
    return bool(information.get("omni_force_kv_transfer", False))


def is_warm_up(request_id: str) -> bool:
    """Whether a request is a diffusion stage's own, for which nobody sends anything."""
    return request_id == DUMMY_REQUEST or request_id.startswith(DUMMY_REQUEST + "/")


class Companions:
    """Requests that go on together: a parent is ready when it and all its companions are.

    Companions are the branches of classifier-free guidance, each a request of its own with its own cache.
    """

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, ...]] = {}
        """By parent: itself and its companions."""
        self._missing: dict[str, set[str]] = {}
        self._parent: dict[str, str] = {}

    def expect(self, parent: str, companions: Sequence[str] = ()) -> None:
        """A parent and all that it waits for.

        Raises:
            UsageError: one of them is waited for already.
        """
        family = (parent, *companions)
        doubled = [request for request in family if request in self._parent]
        if doubled or len(set(family)) < len(family):
            raise UsageError(f"{doubled or list(family)} would be waited for twice")
        self._families[parent] = family
        self._missing[parent] = set(family)
        self._parent.update(dict.fromkeys(family, parent))

    def ready(self, request_id: str) -> str | None:
        """A request's cache is there; the parent, once nothing is missing any more."""
        parent = self._parent.get(request_id)
        if parent is None:
            return None
        missing = self._missing[parent]
        missing.discard(request_id)
        if missing:
            return None
        self.drop(parent)
        return parent

    def failed(self, request_id: str) -> str | None:
        """A request's cache will not come; the parent, which will not be ready."""
        parent = self._parent.get(request_id)
        if parent is not None:
            self.drop(parent)
        return parent

    def drop(self, parent: str) -> None:
        """Wait for it no more. Idempotent."""
        for request in self._families.pop(parent, ()):
            del self._parent[request]
        self._missing.pop(parent, None)

    def missing(self, parent: str) -> frozenset[str]:
        """Who is waited for."""
        return frozenset(self._missing.get(parent, ()))
