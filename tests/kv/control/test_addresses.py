"""Addresses of instances, request ids that carry them, ports of ranks."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omni_async.errors import ProtocolError, UsageError
from omni_async.kv.control import (
    RequestId,
    ZmqAddress,
    clashes,
    http_address,
    new_request_id,
    offset_of,
    port_of,
)

PORTS = st.integers(1, 65535)
HOSTS = st.one_of(
    st.ip_addresses().map(str).filter(lambda host: host not in ("0.0.0.0", "::")),
    st.from_regex(r"[a-z0-9]([a-z0-9_.-]{0,30}[a-z0-9])?", fullmatch=True).filter(
        lambda host: host != "auto" and "___" not in host
    ),
    st.just("fe80::1%eth0"),
)
ADDRESSES = st.builds(ZmqAddress, HOSTS, PORTS, PORTS)


@given(ADDRESSES)
def test_an_address_comes_back(address: ZmqAddress) -> None:
    assert ZmqAddress.parse(str(address)) == address


def test_as_instances_write_them() -> None:
    address = ZmqAddress.parse("host:127.0.0.1,handshake:6301,notify:6105")
    assert address == ZmqAddress("127.0.0.1", 6301, 6105)
    assert address.engine_id == "127.0.0.1:6301"
    assert ZmqAddress.parse("host:::1,handshake:6301,notify:6105").host == "::1"
    assert ZmqAddress.parse(" notify: 1 , host : fe80::1%lo ,handshake:2,later:a:b:c,nothing") == (
        ZmqAddress("fe80::1%lo", 2, 1)
    )
    assert ZmqAddress.parse("host:[2001:db8::2],handshake:1,notify:2").host == "2001:db8::2"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "host and handshake and notify"),
        ("tcp://1.2.3.4:5", "does not tell host"),
        ("host:1.2.3.4,handshake:6301", "does not tell notify"),
        ("host:,handshake:1,notify:2", "does not tell host"),
        ("host:a,handshake:x,notify:2", "handshake: 0 is no port"),
        ("host:a,handshake:-1,notify:2", "handshake: 0 is no port"),
        ("host:a,handshake:1,notify:65536", "notify: 65536 is no port"),
        ("host:a,handshake:1,notify:99999999999999999999", "no port"),
        ("host:0.0.0.0,handshake:1,notify:2", "no host"),
        ("host:a b,handshake:1,notify:2", "no host"),
        ("host:a\r\nx,handshake:1,notify:2", "no host"),
        ("host:höst,handshake:1,notify:2", "no host"),
        ("x" * 5000, "no address"),
    ],
)
def test_what_is_none(text: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        ZmqAddress.parse(text)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    with contextlib.suppress(ProtocolError):
        ZmqAddress.parse(text)


@pytest.mark.parametrize("host", ["", "auto", "::", "[::1]", "a,b", "a:5", "a/b"])
def test_hosts_that_peers_cannot_be_told(host: str) -> None:
    with pytest.raises(UsageError, match="no host"):
        ZmqAddress(host, 1, 2)


def test_a_url_has_ipv6_in_brackets() -> None:
    assert http_address("10.0.0.1", 80) == "10.0.0.1:80"
    assert http_address("::1", 20005) == "[::1]:20005"


# -- request ids -------------------------------------------------------------------------------------

P = "host:10.0.0.1,handshake:6301,notify:6105"
D = "host:2001:db8::7,handshake:7301,notify:7501"
HEX = "0123456789abcdef0123456789abcdef"
PLAIN = f"___prefill_addr_{P}___decode_addr_{D}_{HEX}"
FORMS = [
    PLAIN,
    f"cmpl-{PLAIN}-0",
    f"cmpl-{PLAIN}-0-1a2b3c4d",
    f"chatcmpl-{PLAIN}",
    f"chatcmpl-{PLAIN}-1a2b3c4d",
    f"0_cmpl-{PLAIN}-0-1a2b3c4d",
]


@pytest.mark.parametrize("text", FORMS)
def test_as_engines_dress_them(text: str) -> None:
    found = RequestId.parse(text)
    assert found == RequestId(P, D, HEX)
    assert found.prefill_address == ZmqAddress("10.0.0.1", 6301, 6105)
    assert found.decode_address == ZmqAddress("2001:db8::7", 7301, 7501)
    assert str(found) == PLAIN


@given(ADDRESSES, ADDRESSES, st.sampled_from(FORMS))
def test_an_id_comes_back(prefill: ZmqAddress, decode: ZmqAddress, form: str) -> None:
    text = form.replace(PLAIN, new_request_id(prefill, decode))
    found = RequestId.parse(text)
    assert (found.prefill_address, found.decode_address) == (prefill, decode)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cmpl-1234",
        f"___prefill_addr_{P}_{HEX}",
        f"___prefill_addr____decode_addr_{D}_{HEX}",
        f"___prefill_addr_{P}___decode_addr__{HEX}",
        f"___decode_addr_{D}___prefill_addr_{P}_{HEX}",
        PLAIN[:-1],
        PLAIN + "_x",
        PLAIN.upper(),
        PLAIN + "a" * 9000,
    ],
)
def test_ids_without_addresses(text: str) -> None:
    assert RequestId.find(text) is None
    with pytest.raises(ProtocolError, match="carries no addresses"):
        RequestId.parse(text)


@given(st.text(st.sampled_from("_prefilldecoaddr0123456789abcdef-:,"), max_size=200))
def test_any_text_is_an_id_or_not(text: str) -> None:
    found = RequestId.find(text)
    assert found is None or str(found) in text


def test_ids_with_other_things_than_addresses_are_ids() -> None:
    found = RequestId.parse(f"___prefill_addr_http://a:1___decode_addr_http://b:2_{HEX}")
    with pytest.raises(ProtocolError, match="no address of an instance"):
        found.prefill_address  # noqa: B018


def test_a_host_that_looks_like_the_end_of_an_id() -> None:
    address = ZmqAddress(f"a_{HEX}-b", 1, 2)
    with pytest.raises(UsageError, match="other host names"):
        new_request_id(address, address)
    with pytest.raises(UsageError):
        new_request_id(ZmqAddress("a", 1, 2), ZmqAddress("b", 1, 2), "not hexadecimal")


# -- ports -------------------------------------------------------------------------------------------


@given(st.integers(1, 16), st.integers(1, 16))
def test_every_rank_has_a_port_of_its_own(dp_size: int, tp_size: int) -> None:
    ports = [port_of(6301, dp, tp, tp_size) for dp in range(dp_size) for tp in range(tp_size)]
    assert ports == list(range(6301, 6301 + dp_size * tp_size))


def test_ranks_that_are_none() -> None:
    for rank in ((-1, 0, 1), (0, 1, 1), (0, -1, 2), (0, 0, 0)):
        with pytest.raises(UsageError):
            offset_of(*rank)
    with pytest.raises(UsageError, match="would listen at port 65536"):
        port_of(65535, 1, 0, 1)


def test_ranges_that_clash() -> None:
    bases = {"handshake_port": 6301, "notify_port": 6304}
    assert clashes(bases, 1, 2, {"http_port": 8000}) == []
    assert clashes(bases, 2, 2, {"http_port": 6305}) == [
        ("notify_port", "ports 6304 to 6307 of its ranks are http_port's port 6305, too"),
        (
            "notify_port",
            "ports 6304 to 6307 of its ranks are handshake_port's ports 6301 to 6304, too",
        ),
    ]
    [(option, text)] = clashes({"notify_port": 65535}, 1, 2, {})
    assert (option, text) == ("notify_port", "2 ranks need the ports 65535 to 65536")
