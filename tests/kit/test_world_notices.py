"""The world notices when a core breaks a promise: each kind of sabotage becomes a short story.

In: one method of a core replaced. Out: the promise that is broken.
Never: leaves a core sabotaged.
"""

from __future__ import annotations

from typing import Any

import pytest

from omni_async.model import Verb
from omni_async.rendezvous.directory import Entry
from omni_async.rendezvous.payload import Payload
from omni_async.rendezvous.receiver import Receiver
from omni_async.rendezvous.sender import Sender
from omni_async.testing.world import Broken, Network, walk


def _nothing(*_: object, **__: object) -> None:
    return None


def _consume_silently(self: Receiver, op: int, *, holding: bool) -> bool:
    done = _consume(self, op, holding=holding)
    if done:
        self.outbox.pop()
    return done


_consume = Receiver.consume


def _walk(verb: Verb) -> None:
    for seed in range(200):
        walk(Network.ORDERED, verb, seed, 100)


@pytest.mark.parametrize(
    ("owner", "name", "sabotage", "verb", "promise"),
    [
        (Payload, "pin", _nothing, Verb.MAP, "freed|unpinned"),
        (Payload, "unpin", _nothing, Verb.MAP, "never freed"),
        (Payload, "drop", _nothing, Verb.WRITE, "never freed"),
        (Receiver, "consume", _consume_silently, Verb.MAP, "claims are left|never freed|waits"),
        (Receiver, "_fail", _nothing, Verb.WRITE, "still has operations|no answer|never freed"),
        (Receiver, "_offer", _nothing, Verb.READ, "waits for"),
        (Sender, "_cancel", _nothing, Verb.WRITE, "nobody waits for"),
        (Sender, "_unpark", _nothing, Verb.MAP, "left|waits|KeyError"),
        (Entry, "available", property(lambda self: self.listed), Verb.MAP, "delivered"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sabotage_is_found(
    monkeypatch: pytest.MonkeyPatch,
    owner: type[Any],
    name: str,
    sabotage: Any,
    verb: Verb,
    promise: str,
) -> None:
    monkeypatch.setattr(owner, name, sabotage)
    with pytest.raises(Broken, match=promise) as caught:
        _walk(verb)
    assert 0 < len(caught.value.story) < 40, "the story was not made short"
