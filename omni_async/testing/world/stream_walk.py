"""Long random stories in a world of streams, and the short version of one that went wrong.

In: a network, a seed. Out: nothing, or a failure with the fewest steps that lead to it.
Never: depends on anything but its arguments; the same seed is the same story.
"""

from __future__ import annotations

import functools
import random
from typing import Any

from .nature import KEYS, RECEIVERS, Network
from .streams import StreamWorld
from .walk import Broken, Step, shorten

OFTEN = {
    "open_writer": 12,
    "open_reader": 10,
    "send": 35,
    "segment": 3,
    "end_writer": 6,
    "read": 25,
    "fetch_ahead": 4,
    "widen": 2,
    "leave": 6,
    "tidy": 2,
    "connect": 6,
    "hear": 15,
    "disturb": 25,
    "disrupt": 2,
    "settle": 2,
}
"""How often each step is taken, of all together."""


def walk_streams(network: Network, seed: int, steps: int) -> None:
    """Take random steps, checking after each, then bring the world to its end.

    Raises:
        Broken: with the shortest story that was found for the same failure.
    """
    chance = random.Random(seed)
    names = chance.choices(list(OFTEN), list(OFTEN.values()), k=steps)
    story = [random_step(chance, name) for name in names]
    reason = tell_streams(network, story)
    if reason is not None:
        again = functools.partial(tell_streams, network)
        raise Broken(reason, f"StreamWorld({network})", shorten(story, reason, again))


def tell_streams(network: Network, story: list[Step]) -> str | None:
    """Play a story; the reason when a promise was broken."""
    world = StreamWorld(network)
    try:
        for step in story:
            getattr(world, step.name)(**step.arguments)
            world.check()
        world.end()
    except (AssertionError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def random_step(chance: random.Random, name: str) -> Step:
    """One step of that name."""
    heard = {"heard": chance.choice([0, 0, 0, 1, 2, 8])}
    index = {"index": chance.randrange(100)}
    key = {"key": chance.choice(KEYS)}
    receiver = {"name": chance.choice(RECEIVERS)}
    window = {"window": chance.choice([1, 2, 3, 8])}
    seconds = chance.choice([0.0, 0.0, 150.0, 301.0])
    arguments: dict[str, dict[str, Any]] = {
        "open_writer": key | window | heard,
        "open_reader": receiver | key | window | heard,
        "send": index | {"filed": chance.random() < 0.4} | heard,
        "segment": index | heard,
        "end_writer": index | {"reason": chance.choice([None, None, "boom"])} | heard,
        "read": index | heard,
        "fetch_ahead": index | heard,
        "widen": index | {"more": chance.randint(1, 4)} | heard,
        "leave": index | heard,
        "tidy": key | {"seconds": seconds} | heard,
        "connect": receiver,
        "hear": index | {"count": chance.randint(1, 4)},
        "disturb": index | {"which": chance.randrange(10), "how": chance.randrange(3)},
        "disrupt": receiver | {"how": chance.choice(["cut", "kill", "close", "restart"])},
        "settle": {},
    }
    return Step(name, arguments[name])
