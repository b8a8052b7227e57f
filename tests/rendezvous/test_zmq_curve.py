"""Keys: who has the right ones is served, everybody else is not, and learns little."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth

from omni_async.errors import ConfigError, ProtocolError
from omni_async.rendezvous.handshake import Disagreement
from omni_async.rendezvous.messages import Done
from omni_async.rendezvous.zmq_curve import Curve
from tests.descriptors import open_descriptors
from tests.rendezvous.lines import Recorder, hello, pair, want
from tests.rendezvous.zmq_wire import HOST, Bare, listens, local, until


def keys() -> tuple[str, str]:
    """Public and secret."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


SERVER, CLIENT, OTHER = keys(), keys(), keys()


def sender(*allowed: str) -> dict[str, Any]:
    return {"server_secret_key": SERVER[1], "allowed_clients": list(allowed or (CLIENT[0],))}


def receiver(own: tuple[str, str] = CLIENT, server: tuple[str, str] = SERVER) -> dict[str, Any]:
    return {"server_public_key": server[0], "client_secret_key": own[1]}


BOTH = {**sender(), **receiver()}


@pytest.fixture(autouse=True)
async def no_thread_left() -> Any:
    yield
    for thread in threading.enumerate():
        if thread.name == "omni-async-zmq-end":
            await asyncio.to_thread(thread.join, 3)
            assert not thread.is_alive()


class TestLines:
    async def test_right_keys(self, namespace: str) -> None:
        async with pair(local(curve=BOTH), namespace) as ends:
            for op in range(2000):
                ends.rx.send(want(op))
                ends.tx.send(Done(op))
            for op in range(2000):
                assert await ends.sender.next("received") == want(op)
                assert await ends.receiver.next("received") == Done(op)

    async def test_of_several_clients(self, namespace: str) -> None:
        curve = sender(CLIENT[0], OTHER[0])
        async with listens(local(curve=curve), namespace) as house:
            for own in (CLIENT, OTHER):
                handler = Recorder()
                dialer = local(curve=receiver(own)).dial(
                    house.address, hello("receiver", namespace), handler
                )
                await handler.next("opened")
                dialer.close()
            assert house.listener.dropped == 0

    @pytest.mark.parametrize(
        ("curve", "kind", "text"),
        [
            (receiver(own=OTHER), Disagreement, "does not allow this receiver's key"),
            (receiver(server=OTHER), (OSError, ProtocolError), ""),
            (None, (OSError, ProtocolError), ""),
        ],
        ids=["not allowed", "wrong key of the sender", "without keys"],
    )
    async def test_others_are_not_served(
        self, namespace: str, curve: Any, kind: Any, text: str
    ) -> None:
        async with listens(local(curve=sender()), namespace) as house:
            handler = Recorder()
            dialer = local(curve=curve).dial(house.address, hello("receiver", namespace), handler)
            assert await dialer.attempt() is None
            assert isinstance(dialer.refused(), kind)
            assert text in str(dialer.refused())
            dialer.close()
            assert house.handler.events == handler.events == []
            await house.until_dropped(1)
            right = local(curve=receiver()).dial(
                house.address, hello("receiver", namespace), handler
            )
            await handler.next("opened")
            right.close()

    async def test_a_sender_without_keys_is_not_spoken_to(self, namespace: str) -> None:
        async with listens(local(), namespace) as house:
            handler = Recorder()
            dialer = local(curve=receiver()).dial(
                house.address, hello("receiver", namespace), handler
            )
            assert await dialer.attempt() is None
            assert handler.events == house.handler.events == []
            dialer.close()

    async def test_strangers_need_a_key_too(self, namespace: str) -> None:
        async with listens(local(curve=sender()), namespace) as house:
            house.listener.on_stranger = lambda stranger: stranger.answer(b"answer")
            without = house.bare(zmq.REQ)
            without.say(b"question")
            knowing = house.bare(
                zmq.REQ,
                CURVE_SERVERKEY=SERVER[0].encode(),
                CURVE_PUBLICKEY=CLIENT[0].encode(),
                CURVE_SECRETKEY=CLIENT[1].encode(),
            )
            knowing.say(b"question")
            assert await knowing.next() == [b"answer"]
            assert without.heard.empty()

    async def test_two_senders_of_one_process_with_different_lists(self, namespace: str) -> None:
        async with (
            listens(local(curve=sender(CLIENT[0])), namespace) as one,
            listens(local(curve=sender(OTHER[0])), namespace) as two,
        ):
            for house, own, let_in in (
                (one, CLIENT, True),
                (two, CLIENT, False),
                (one, OTHER, False),
                (two, OTHER, True),
            ):
                dialer = local(curve=receiver(own)).dial(
                    house.address, hello("receiver", namespace), Recorder()
                )
                assert (await dialer.attempt() is not None) is let_in
                dialer.close()

    async def test_nothing_can_be_read_on_the_way(self, namespace: str) -> None:
        """A relay sees all bytes of a line; none of the words is among them."""
        seen = bytearray()
        async with listens(local(curve=sender()), namespace) as house:

            async def relay(reader: Any, writer: Any) -> None:
                far_reader, far_writer = await asyncio.open_connection(HOST, house.listener.port)

                async def pump(source: Any, target: Any) -> None:
                    while data := await source.read(65536):
                        seen.extend(data)
                        target.write(data)
                    target.close()

                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

            server = await asyncio.start_server(relay, HOST, 0)
            port = server.sockets[0].getsockname()[1]
            handler = Recorder()
            dialer = local(curve=receiver()).dial(
                f"tcp://{HOST}:{port}", hello("receiver", namespace), handler
            )
            channel = await handler.next("opened")
            channel.send(want(1, "a-secret-word"))
            assert await house.handler.next("received") == want(1, "a-secret-word")
            assert len(seen) > 500
            assert b"a-secret-word" not in seen
            assert namespace.encode() not in seen
            dialer.close()
            await house.handler.next("ended")
            server.close()
            await asyncio.sleep(0.05)

    async def test_closing_takes_no_time(self, namespace: str) -> None:
        async with pair(local(curve=BOTH), namespace) as ends:
            began = time.monotonic()
            ends.listener.close()
            ends.tx.close()
            assert time.monotonic() - began < 0.1
            assert await ends.receiver.next("ended") is None

    async def test_opened_and_closed_a_hundred_times(self, namespace: str) -> None:
        """With a context for each: no thread, no descriptor stays."""

        async def often(count: int) -> None:
            for round in range(count):
                async with pair(local(curve=BOTH), f"{namespace}-{round}") as ends:
                    ends.rx.send(want(1))
                    assert await ends.sender.next("received") == want(1)

        await often(10)
        await asyncio.sleep(0.5)
        threads, fds = len(os.listdir("/proc/self/task")), len(open_descriptors())
        await often(90)
        await until(lambda: len(os.listdir("/proc/self/task")) <= threads)
        await until(lambda: len(open_descriptors()) <= fds)

    async def test_a_failed_start_leaves_nothing(
        self, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("omni_async.rendezvous.zmq_channel.ZmqListener", lambda *_: 1 / 0)
        before = len(open_descriptors())
        with pytest.raises(ZeroDivisionError):
            async with listens(local(curve=sender()), namespace):
                pass
        await until(lambda: len(open_descriptors()) <= before)


class TestKeys:
    async def test_each_end_needs_its_own_half(self, namespace: str) -> None:
        with pytest.raises(ConfigError, match=r"curve\.server_secret_key is missing.*senders need"):
            async with listens(local(curve=receiver()), namespace):
                pass
        with pytest.raises(ConfigError, match="client_secret_key is missing, which receivers need"):
            local(curve=sender()).dial("tcp://x:1", hello("receiver", namespace), Recorder())
        with pytest.raises(ConfigError, match="allowed_clients is missing"):
            Curve(server_secret_key=SERVER[1]).for_sender()
        with pytest.raises(ConfigError, match="server_public_key is missing"):
            Curve(client_secret_key=CLIENT[1]).for_receiver()

    async def test_in_files(self, tmp_path: Path, namespace: str) -> None:
        for name, text in (
            ("server", SERVER[1] + "\n"),
            ("client", CLIENT[1]),
            ("server.public", SERVER[0]),
            ("allowed", f"# receivers\n{OTHER[0]}  # one\n\n{CLIENT[0]}\n"),
        ):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o600)
        (tmp_path / "allowed").chmod(0o644)
        curve = {
            "server_secret_key": f"{tmp_path}/server",
            "allowed_clients": [f"{tmp_path}/allowed"],
            "server_public_key": f"{tmp_path}/server.public",
            "client_secret_key": f"{tmp_path}/client",
        }
        async with pair(local(curve=curve), namespace) as ends:
            ends.rx.send(want(1))
            assert await ends.sender.next("received") == want(1)

    async def test_in_certificates(self, tmp_path: Path, namespace: str) -> None:
        _, server = zmq.auth.create_certificates(tmp_path, "server")
        client_public, client = zmq.auth.create_certificates(tmp_path, "client")
        for secret in (server, client):
            os.chmod(secret, 0o600)
        curve: dict[str, Any] = {
            "server_secret_key": str(server),
            "allowed_clients": [str(client_public)],
            "server_public_key": f"{tmp_path}/server.key",
            "client_secret_key": str(client),
        }
        async with pair(local(curve=curve), namespace) as ends:
            ends.rx.send(want(1))
            assert await ends.sender.next("received") == want(1)
        os.chmod(client_public, 0o600)
        with pytest.raises(ConfigError, match="that file has no secret key"):
            Curve(**{**curve, "client_secret_key": str(client_public)}).for_receiver()

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
    def test_a_secret_that_others_may_read(self, tmp_path: Path, mode: int) -> None:
        file = tmp_path / "secret"
        file.write_text(CLIENT[1])
        file.chmod(mode)
        with pytest.raises(ConfigError, match=r"others may read .*chmod 600 it"):
            Curve(server_public_key=SERVER[0], client_secret_key=str(file)).for_receiver()

    @pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")
    def test_a_secret_of_another_user(self, tmp_path: Path) -> None:
        file = tmp_path / "secret"
        file.write_text(CLIENT[1])
        file.chmod(0o600)
        os.chown(file, 65534, 65534)
        with pytest.raises(ConfigError, match="belongs to user 65534"):
            Curve(server_public_key=SERVER[0], client_secret_key=str(file)).for_receiver()

    @pytest.mark.parametrize(
        ("text", "told"),
        [
            ("/no/such/file", "'/no/such/file' is neither a key"),
            (CLIENT[1][:-1], "what stands there is neither a key of 40 characters"),
            (CLIENT[1][:-1] + "\\", "what stands there is neither"),
        ],
        ids=["no file", "too short", "not Z85"],
    )
    def test_neither_key_nor_file(self, text: str, told: str) -> None:
        with pytest.raises(ConfigError) as caught:
            Curve(server_public_key=SERVER[0], client_secret_key=text).for_receiver()
        assert told in str(caught.value)
        assert CLIENT[1][:-1] not in str(caught.value)
        assert caught.value.path == "curve.client_secret_key"

    @pytest.mark.parametrize(
        "content",
        ["", "x", "é" * 40, "\xff", SERVER[0] * 2],
        ids=["empty", "short", "other letters", "no text", "two keys"],
    )
    def test_files_of_something_else(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "keys"
        file.write_bytes(content.encode("latin-1"))
        with pytest.raises(ConfigError):
            Curve(server_public_key=str(file), client_secret_key=CLIENT[1]).for_receiver()
        if content:
            with pytest.raises(ConfigError):
                Curve(server_secret_key=SERVER[1], allowed_clients=[str(file)]).for_sender()

    def test_a_file_whose_name_could_be_a_key(
        self,
    ) -> None:
        folder = Path(f"/tmp/{os.getpid()}")
        folder.mkdir()
        name = str(folder) + "/" + "k" * (39 - len(str(folder)))
        assert len(name) == 40
        try:
            Path(name).write_text(CLIENT[1])
            os.chmod(name, 0o600)
            found = Curve(server_public_key=SERVER[0], client_secret_key=name).for_receiver()
            assert found.public == CLIENT[0].encode()
        finally:
            os.unlink(name)
            folder.rmdir()


async def test_a_connection_of_another_mechanism_is_told(namespace: str) -> None:
    async with listens(local(curve=sender()), namespace) as house:
        plain = Bare(house.address)
        plain.say(b"x")
        await house.until_dropped(1)
        assert isinstance(house.listener.last_drop, (ProtocolError, ConnectionError))
        plain.close(0.0)
