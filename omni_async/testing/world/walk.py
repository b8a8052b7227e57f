"""Long random stories in a world, and the short version of one that went wrong.

In: a network, a verb, a seed. Out: nothing, or a failure with the fewest steps that lead to it.
Never: depends on anything but its arguments; the same seed is the same story.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from ...model import Verb
from .nature import KEYS, RECEIVERS, STAGES, Network
from .world import World


class Step(NamedTuple):
    """One call of a method of :class:`World`."""

    name: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return f"world.{self.name}({', '.join(f'{k}={v!r}' for k, v in self.arguments.items())})"


class Broken(AssertionError):
    """A promise was broken; ``story`` are the steps that lead to it."""

    def __init__(self, reason: str, world: str, story: list[Step]) -> None:
        steps = "\n".join(f"    {step}" for step in story)
        super().__init__(f"{reason}\n    world = {world}\n{steps}\n    world.end()")
        self.story = story


def walk(network: Network, verb: Verb, seed: int, steps: int) -> None:
    """Take random steps, checking after each, then bring the world to its end.

    Raises:
        Broken: with the shortest story that was found for the same failure.
    """
    chance = random.Random(seed)
    alone = chance.random() < 0.5
    story = [random_step(chance, network) for _ in range(steps)]
    reason = tell(network, verb, story, alone=alone)
    if reason is not None:
        world = f"World({network}, {verb}, alone={alone})"
        again = functools.partial(tell, network, verb, alone=alone)
        raise Broken(reason, world, shorten(story, reason, again))


def tell(network: Network, verb: Verb, story: list[Step], *, alone: bool) -> str | None:
    """Play a story; the reason when a promise was broken."""
    world = World(network, verb, alone=alone)
    try:
        for step in story:
            getattr(world, step.name)(**step.arguments)
            world.check()
        world.end()
    except (AssertionError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def shorten(
    story: list[Step], reason: str, again: Callable[[list[Step]], str | None]
) -> list[Step]:
    """Leave out steps for as long as a promise of the same kind breaks.

    Args:
        again: plays a story, and says which promise was broken.
    """
    kind = _kind(reason)
    size = max(1, len(story) // 2)
    while size:
        at = 0
        while at < len(story):
            shorter = story[:at] + story[at + size :]
            broken = again(shorter)
            if broken is not None and _kind(broken) == kind:
                story = shorter
            else:
                at += size
        size //= 2
    return story


def random_step(chance: random.Random, network: Network) -> Step:
    """One step, the usual ones oftener."""
    pick = chance.random()
    heard = chance.choice([0, 0, 1, 2, 4, 8])
    index = chance.randrange(100)
    name = chance.choice(RECEIVERS)
    key = chance.choice(KEYS)
    if pick < 0.22:
        return Step(
            "put",
            {
                "stage": chance.choice(STAGES),
                "key": key,
                "consumers": chance.choice([1, 1, 1, 2, 3]),
                "inline": chance.random() < 0.3,
                "owner": chance.choice(["a", "req"]),
                "heard": heard,
            },
        )
    if pick < 0.42:
        park = chance.random() < 0.8
        return Step("want", {"name": name, "key": key, "park": park, "heard": heard})
    if pick < 0.67:
        cancels = chance.random() < 0.25
        return Step("go_on", {"index": index, "cancels": cancels, "heard": heard})
    if pick < 0.75:
        return Step("hear", {"index": index, "count": chance.randint(1, 4)})
    if pick < 0.82:
        return Step("end_write", {"index": index, "fails": chance.random() < 0.3, "heard": heard})
    if pick < 0.86:
        return Step("connect", {"name": name})
    if pick < 0.93 and network:
        how = chance.randrange(3)
        return Step("disturb", {"index": index, "which": chance.randrange(10), "how": how})
    if pick < 0.95:
        seconds = chance.choice([0.0, 0.0, 150.0, 301.0])
        return Step("tidy", {"owner": chance.choice(["a", "req"]), "seconds": seconds})
    if pick < 0.97:
        fate = chance.choice(["cut", "cut", "kill", "leave", "restart"])
        return Step("disrupt", {"name": name, "how": fate})
    return Step("settle", {})


def _kind(reason: str) -> str:
    """The reason without its numbers."""
    return "".join(character for character in reason if not character.isdigit())
