"""Signs of life, and silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from omni_async.abc import Channel
from omni_async.rendezvous.heartbeat import Heartbeat
from omni_async.rendezvous.messages import Offer, Ping, encode
from omni_async.rendezvous.unix_channel import UnixChannels
from tests.rendezvous.lines import pair
from tests.rendezvous.test_unix_framing import frame
from tests.rendezvous.wire import Wire, ends, wire

__all__ = ["ends", "wire"]


class TestSignsOfLife:
    async def test_idle_lines_speak(self, namespace: str) -> None:
        wire = Wire()
        await wire.open(namespace, silent_after=0.08)
        for _ in range(3):
            loop = asyncio.get_running_loop()
            data = await asyncio.wait_for(loop.sock_recv(wire.sock, 100), 5)
            assert data == frame(encode(Ping()))
        wire.close()

    async def test_silence_is_told_twice_and_ends_with_a_word(self, namespace: str) -> None:
        wire = Wire()
        await wire.open(namespace, silent_after=0.05, peer_timeout=0.2)
        first = await wire.handler.next("silent")
        second = await wire.handler.next("silent")
        assert 0.05 <= first < 0.2 <= second < 1.0
        await asyncio.sleep(0.1)
        assert wire.handler.queue("silent").empty()
        wire.sock.send(frame(encode(Ping())))
        assert 0.05 <= await wire.handler.next("silent") < 0.2
        assert wire.handler.words == []  # a Ping is not the handler's
        wire.close()

    async def test_two_idle_ends_keep_each_other_awake(self, namespace: str) -> None:
        async with pair(UnixChannels(silent_after=0.1, peer_timeout=0.3), namespace) as ends:
            await asyncio.sleep(0.8)
            assert ends.sender.queue("silent").empty()
            assert ends.receiver.queue("silent").empty()

    async def test_own_blocked_loop_accuses_nobody(self, namespace: str) -> None:
        async with pair(UnixChannels(silent_after=0.2, peer_timeout=0.4), namespace) as ends:
            time.sleep(1.0)  # noqa: ASYNC251 - a synchronous step of the engine
            await asyncio.sleep(0.1)
            assert ends.sender.queue("silent").empty()
            assert ends.receiver.queue("silent").empty()

    async def test_close_from_inside_silent(self, namespace: str) -> None:
        wire = Wire()
        await wire.open(namespace, silent_after=0.05)
        silences: list[float] = []

        def silent(channel: Channel, seconds: float) -> None:
            silences.append(seconds)
            channel.close()

        wire.handler.silent = silent  # type: ignore[method-assign]
        await asyncio.sleep(0.4)
        assert len(silences) == 1
        wire.close()

    async def test_nothing_is_added_to_a_line_that_takes_nothing(self, namespace: str) -> None:
        wire = Wire()
        await wire.open(namespace, silent_after=0.05)
        while not wire.line.queued:
            wire.line.send(Offer(1, 1, [1], [], [], bytes(100_000)))
            wire.line.flush()
        queued = wire.line.queued
        await asyncio.sleep(0.3)
        assert wire.line.queued == queued
        wire.close()


def beats(beat: Heartbeat, times: Sequence[float]) -> list[float]:
    return [silence for now in times if (silence := beat.tick(now)[1]) is not None]


class TestHeartbeat:
    def test_every_tick_adds_at_most_a_period(self) -> None:
        beat = Heartbeat(2.0, 30.0)
        assert beat.period == 0.5
        assert beats(beat, [0.0, 0.5, 10.5, 20.5]) == []  # 20 s, most of them ours
        assert beats(beat, [21.0]) == [2.0]

    def test_never_earlier_than_the_threshold(self) -> None:
        beat = Heartbeat(2.0, 30.0)
        ticks = [0.5 * n for n in range(200)]
        assert beats(beat, ticks) == [2.0, 30.0]

    def test_a_sign_begins_anew(self) -> None:
        beat = Heartbeat(1.0, 1.0)
        assert beats(beat, [0.25 * n for n in range(9)]) == [1.0]
        beat.heard = True
        assert beats(beat, [2.25 + 0.25 * n for n in range(9)]) == [1.0]

    def test_both_thresholds_in_any_order(self) -> None:
        assert beats(Heartbeat(2.0, 0.5), [0.125 * n for n in range(40)]) == [
            0.5,
            2.0,
        ]

    def test_speaks_every_second_tick_when_idle(self) -> None:
        beat = Heartbeat(2.0, 30.0)
        spoken = []
        for n in range(6):
            speak, _ = beat.tick(n * 0.5)
            spoken.append(speak)
            beat.said = speak
        assert spoken == [False, True, False, True, False, True]
