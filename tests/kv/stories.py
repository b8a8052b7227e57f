"""Random stories in the world of KV transfers, and the short version of one that went wrong.

In: a kind of world, a seed. Out: nothing, or a failure with the fewest steps that lead to it.
Never: depends on anything but its arguments; the same seed is the same story.
"""

from __future__ import annotations

import functools
import random
from typing import Any

from omni_async.kv.words import Mode, Reason
from omni_async.testing.world.walk import Broken, Step, shorten

from .books import ADDRESSES, CONSUMERS, LAYERS, REQUESTS
from .world import CacheWorld

KINDS: dict[str, dict[str, bool]] = {
    "direct": {"writes": True},
    "staged": {"writes": True, "staged": True},
    "staging": {"writes": True, "staging": True},
    "read": {"writes": False},
}

OFTEN = {
    "open": 12,
    "assign": 4,
    "ready": 20,
    "seal": 10,
    "give_up": 2,
    "abort": 1,
    "forget": 3,
    "want": 14,
    "cancel": 2,
    "decline": 1,
    "tell_room": 15,
    "take_away": 2,
    "use_up": 8,
    "land": 3,
    "end_write": 20,
    "end_read": 15,
    "end_copy": 15,
    "connect": 10,
    "hear": 60,
    "cut": 3,
    "kill_consumer": 0.5,
    "kill_producer": 0.5,
    "replace_producer": 0.5,
    "die_at_last": 1,
    "close_producer": 0.2,
    "settle": 2,
}
"""How often each step is taken usually, of all together."""


def walk(kind: str, seed: int, steps: int) -> int:
    """Take random steps, checking after each, then bring the world to its end.

    Returns:
        Shares that were whole.

    Raises:
        Broken: with the shortest story that was found for the same failure.
    """
    story = story_of(seed, steps)
    reason, done = _play(kind, story)
    if reason is not None:
        again = functools.partial(tell, kind)
        raise Broken(reason, f"CacheWorld(**{KINDS[kind]})", shorten(story, reason, again))
    return done


def story_of(seed: int, steps: int) -> list[Step]:
    """Each story has steps that it likes, and others that it hardly takes: so it goes deeper somewhere."""
    chance = random.Random(seed)
    often = [usual * chance.choice([0.3, 1, 1, 3]) for usual in OFTEN.values()]
    return [random_step(chance, name) for name in chance.choices(list(OFTEN), often, k=steps)]


def tell(kind: str, story: list[Step]) -> str | None:
    """Play a story; the reason when a promise was broken."""
    return _play(kind, story)[0]


def _play(kind: str, story: list[Step]) -> tuple[str | None, int]:
    world = CacheWorld(**KINDS[kind])
    try:
        for step in story:
            getattr(world, step.name)(**step.arguments)
        world.end()
    except Exception as error:  # noqa: BLE001 - whatever a core raises for words of the other is a fault
        return f"{type(error).__name__}: {error}", world.done
    return None, world.done


def random_step(chance: random.Random, name: str) -> Step:
    """One step of that name."""
    index = {"index": chance.randrange(100)}
    problem = {"problem": chance.random() < 0.05}
    taker = {"name": chance.choice(CONSUMERS)}
    giver = {"address": chance.choice([ADDRESSES[0], *ADDRESSES])}
    request = {"request": chance.choice(REQUESTS)}
    mode = {"mode": chance.choice([Mode.WRITE] * 30 + [Mode.READ])}
    up = {"up": chance.choice([0, 0, 1, 2, 8])}
    down = {"down": chance.choice([0, 0, 1, 2, 8])}
    consumers = {"consumers": chance.choice([1, 1, 1, 2])}
    arguments: dict[str, dict[str, Any]] = {
        "open": giver | request | mode | consumers | {"assign": chance.random() < 0.8},
        "assign": index,
        "ready": index | {"layer": chance.randrange(LAYERS)},
        "seal": index,
        "give_up": index | {"reason": chance.choice([Reason.ABORTED, Reason.TIMEOUT])},
        "abort": giver | request,
        "forget": giver | request,
        "want": taker | giver | request | mode | {"size": chance.choice([2] * 30 + [1])},
        "cancel": index | {"late": chance.random() < 0.5},
        "decline": taker | giver | request,
        "tell_room": index,
        "take_away": index,
        "use_up": index,
        "land": index,
        "end_write": index | problem,
        "end_read": index | problem,
        "end_copy": index | problem,
        "connect": taker | giver,
        "hear": index | {"count": chance.randint(1, 6)},
        "cut": taker | giver | up | down | {"proven": chance.random() < 0.5},
        "kill_consumer": taker | up,
        "kill_producer": giver | down,
        "replace_producer": giver | up | down,
        "die_at_last": index,
        "close_producer": giver,
        "settle": problem,
    }
    return Step(name, arguments[name])
