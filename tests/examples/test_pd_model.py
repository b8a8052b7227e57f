"""The example's model says the same from any cache and with any number of ranks; the parts around it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import pytest

torch = pytest.importorskip("torch")

from examples.pd_disaggregation.cache import Blocks, PagedCache, layout_of  # noqa: E402
from examples.pd_disaggregation.line import Calls, Gather, RankFailed, obey, over  # noqa: E402
from examples.pd_disaggregation.model import Model, Said, Shape, alone, encode  # noqa: E402

PROMPT = encode("what a cat on a mat has to say of caches")
SHAPE = Shape()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def continued(model: Model, cache: PagedCache, blocks: list[int], count: int) -> list[Said]:
    """What follows, where the cache holds the prompt already."""
    tokens, at, found = PROMPT[-1:], len(PROMPT) - 1, []
    for _ in range(count):
        found.append(model.forward(tokens, at, cache.sequence(blocks)))
        tokens, at = [found[-1].token], at + 1
    return found


@contextmanager
def shared_out(size: int) -> Iterator[list[Model]]:
    """One model in ranks."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(size - 1)]
        ends = [[own for own, _ in pairs], *([theirs] for _, theirs in pairs)]
        models = []
        for rank, others in enumerate(ends):
            gather = stack.enter_context(closing(Gather(others, rank, size)))
            models.append(Model(SHAPE, tp_rank=rank, tp_size=size, gather=gather))
        yield models


@pytest.mark.parametrize("form", ["split", "stacked", "paired"])
def test_a_paged_cache_holds_what_was_computed(form: str) -> None:
    model = Model(SHAPE)
    cache = PagedCache(layout_of(SHAPE, form=form, block_size=8, num_blocks=12))  # type: ignore[arg-type]
    blocks = [7, 2, 9, 0, 11, 4, 1, 3]
    layers: list[int] = []
    first = model.forward(PROMPT, 0, cache.sequence(blocks), layers.append)
    assert layers == list(range(SHAPE.layers))
    found, wanted = continued(model, cache, blocks, 8), alone(model, PROMPT, 8)
    assert first.token == found[0].token
    assert [said.token for said in found] == [said.token for said in wanted]
    assert [said.logprob for said in found] == pytest.approx([s.logprob for s in wanted], abs=1e-12)
    # Far more than what rows that are multiplied one by one differ in.
    assert min(said.margin for said in wanted) > 1e-6


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_say_the_same(size: int) -> None:
    cache, blocks = PagedCache(layout_of(SHAPE, num_blocks=4)), [2, 0, 3, 1]
    one = Model(SHAPE)
    wanted = [one.forward(PROMPT, 0, cache.sequence(blocks)), *continued(one, cache, blocks, 4)]
    with shared_out(size) as models, ThreadPoolExecutor(size) as threads:

        def say(rank: int) -> list[Said]:
            layout = layout_of(SHAPE, num_blocks=4, tp_size=size, tp_rank=rank)
            own, model = PagedCache(layout), models[rank]
            return [
                model.forward(PROMPT, 0, own.sequence(blocks)),
                *continued(model, own, blocks, 4),
            ]

        for found in threads.map(say, range(size)):
            assert [said.token for said in found] == [said.token for said in wanted]
            logprobs = [said.logprob for said in wanted]
            assert [said.logprob for said in found] == pytest.approx(logprobs, abs=1e-12)


def test_every_number_in_a_cache_matters() -> None:
    """So that a token, or how sure it is, tells of each byte that is wrong."""
    model = Model(SHAPE)
    cache, blocks = PagedCache(layout_of(SHAPE, num_blocks=3)), [1, 2, 0]
    model.forward(PROMPT, 0, cache.sequence(blocks))
    [wanted] = continued(model, cache, blocks, 1)
    unnoticed = []
    for layer in range(SHAPE.layers):
        for part in range(2):
            kept = cache.memory.caches[layer][part]
            for token in range(0, len(PROMPT) - 1, 4):
                for head in range(SHAPE.kv_heads):
                    place = kept[blocks[token // 16], token % 16, head]
                    before = place.clone()
                    place.zero_()
                    [found] = continued(model, cache, blocks, 1)
                    if abs(found.logprob - wanted.logprob) < 1e-8:
                        unnoticed.append((layer, part, token, head))
                    place.copy_(before)
    assert not unnoticed


def test_heads_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(ValueError, match="4 heads cannot be shared by 3"):
        Model(SHAPE, tp_size=3)


async def test_blocks_are_given_in_turn_and_once() -> None:
    blocks = Blocks(4)
    first = await blocks.take(3)
    large = asyncio.create_task(blocks.take(4))
    small = asyncio.create_task(blocks.take(1))
    await asyncio.sleep(0)
    assert not small.done()  # it came later
    blocks.give(first)
    assert sorted(await large) == [0, 1, 2, 3]
    assert not small.done()
    blocks.give(large.result())
    assert len(await small) == 1
    with pytest.raises(ValueError, match="5 blocks are needed, and there are 4"):
        await blocks.take(5)


async def test_who_stops_waiting_for_blocks_loses_none() -> None:
    blocks = Blocks(2)
    held = await blocks.take(2)
    waiting = [asyncio.create_task(blocks.take(2)) for _ in range(2)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    blocks.give(held)
    assert len(await waiting[1]) == 2
    # Given in the same turn in which it is cancelled.
    late = asyncio.create_task(blocks.take(2))
    await asyncio.sleep(0)
    blocks.give(waiting[1].result())
    late.cancel()
    await asyncio.wait([late])
    assert blocks.free == 2


async def test_calls_begin_in_their_order_and_errors_come_back() -> None:
    begun: list[int] = []

    async def add(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(0)
        return number + 1

    async def fail() -> None:
        raise RuntimeError("no")

    here, there = socket.socketpair()
    obeying = asyncio.create_task(obey(*await over(there), {"add": add, "fail": fail}))
    calls = Calls(*await over(here))
    answers = [calls.call("add", [number]) for number in range(20)]
    assert await asyncio.gather(*answers) == list(range(1, 21))
    assert begun == list(range(20))
    with pytest.raises(RankFailed, match="RuntimeError: no"):
        await calls.call("fail", [])
    await calls.close()
    await obeying
    with pytest.raises(RankFailed, match="has gone"):
        await calls.call("add", [1])


def test_a_rank_that_has_gone_ends_the_others() -> None:
    with shared_out(2) as models:
        ends = models[1]._gather
        assert isinstance(ends, Gather)
        threading.Timer(0.1, ends.close).start()
        with pytest.raises((RankFailed, OSError)):
            models[0].forward(
                PROMPT, 0, PagedCache(layout_of(SHAPE, tp_size=2)).sequence([0, 1, 2])
            )
