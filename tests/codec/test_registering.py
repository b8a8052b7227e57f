"""register_type: what it refuses, and what goes wrong with what it took."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pydantic
import pytest

from omni_async.codec import decode, encode, register_type
from omni_async.codec.wire import Ext, Tag, encode_tree
from omni_async.errors import DecodeError, EncodeError, UsageError

from .classes import (
    Bits,
    Color,
    Level,
    Loose,
    Model,
    Pair,
    Point,
    Slotted,
    Struct,
    Unknown,
    Unsent,
    forget,
)
from .landing import land, same, sealed, trip


def test_a_class_of_no_known_kind_needs_both_functions() -> None:
    choices: list[dict[str, Any]] = [{}, {"encode": vars}, {"decode": Unknown}]
    for options in choices:
        with pytest.raises(UsageError, match="needs encode= and decode="):
            register_type(Unknown, **options)
    with pytest.raises(UsageError, match="takes a class, not 5"):
        register_type(5)  # type: ignore[type-var]
    with pytest.raises(EncodeError):
        encode(Unknown())


@pytest.mark.parametrize("cls", [int, str, dict, list, bytes, np.ndarray, np.float32, complex])
def test_what_can_be_sent_already_is_not_registered(cls: type) -> None:
    with pytest.raises(UsageError, match="can be sent without"):
        register_type(cls, encode=str, decode=str)


def test_torch_types_are_not_registered() -> None:
    torch = pytest.importorskip("torch")
    for cls in (torch.Tensor, torch.nn.Parameter, torch.Size):
        with pytest.raises(UsageError, match="can be sent without"):
            register_type(cls, encode=str, decode=str)


def test_names_are_unique_and_bounded() -> None:
    with pytest.raises(UsageError, match=r"'tests\.foreign' is the registered name of .*Foreign"):
        register_type(Unsent, name="tests.foreign")
    for name in ("", "x" * 201):
        with pytest.raises(UsageError, match="1 to 200 characters"):
            register_type(Unsent, name=name)


def test_the_same_statement_may_run_again() -> None:
    def define() -> Any:
        @register_type
        @dataclasses.dataclass
        class Cell:
            x: int

        return Cell

    old, new = define(), define()
    same(new(1), trip(new(1)))
    assert type(trip(old(1))) is new


def test_registering_again_replaces_name_and_functions() -> None:
    register_type(Unsent, name="tests.first")
    register_type(Unsent, name="tests.second", encode=lambda u: u.x, decode=lambda x: Unsent(-x))
    assert trip(Unsent(5)) == Unsent(-5)
    register_type(Unsent, name="tests.first")
    assert trip(Unsent(5)) == Unsent(5)
    forget(Unsent)
    with pytest.raises(EncodeError):
        encode(Unsent(1))


def test_classes_with_hidden_state_need_functions() -> None:
    @dataclasses.dataclass
    class Listed(list):  # type: ignore[type-arg]
        x: int = 0

    class Hidden:
        __slots__ = "_hidden"

    @dataclasses.dataclass
    class Child(Hidden):
        x: int = 0

    for cls in (Listed, Child):
        with pytest.raises(UsageError, match="keeps more than its fields"):
            register_type(cls)


def test_pydantic_dataclasses() -> None:
    @pydantic.dataclasses.dataclass
    class Checked:
        x: int

    register_type(Checked)
    same(Checked(1), trip(Checked(1)))


# --- faults ---------------------------------------------------------------------------------------


def test_functions_that_fail_are_coding_errors() -> None:
    class Bad:
        pass

    def fail(_: Any) -> Any:
        raise KeyError("inner")

    register_type(Bad, encode=fail, decode=fail)
    with pytest.raises(
        EncodeError, match=r"value\[0\]: object of type Bad .*KeyError\('inner'\)"
    ) as info:
        encode([Bad()])
    assert isinstance(info.value.__cause__, KeyError)
    register_type(Bad, encode=lambda _: 1, decode=fail)
    encoded = encode([Bad()])
    with pytest.raises(DecodeError, match=r"Bad' could not be restored: KeyError\('inner'\)"):
        decode(encoded.header, [])


def test_an_attribute_that_is_gone_is_an_encode_error() -> None:
    point = Point(1, 2)
    del point.x
    slotted = Slotted.__new__(Slotted)
    partial = Model.model_construct(items=[])
    unnamed = Loose(**{"": 1})
    for value in (point, slotted, partial, unnamed):
        with pytest.raises(EncodeError, match="could not be taken apart"):
            encode(value)


def registered_body(name: Any, state: Any) -> bytes:
    return sealed(encode_tree(Ext(Tag.REGISTERED, encode_tree([name, state]))))


def wire_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def test_a_name_unknown_here_is_refused_and_not_imported() -> None:
    for name in ("os.system", "builtins.eval", "antigravity.x", "", 5, None, ["a"]):
        with pytest.raises(DecodeError):
            decode(registered_body(name, {}), [])
    assert "antigravity" not in __import__("sys").modules
    with pytest.raises(
        DecodeError, match=r"'os\.system', unknown here; call omni_async\.register_type"
    ):
        decode(registered_body("os.system", {}), [])


@pytest.mark.parametrize(
    ("cls", "state"),
    [
        (Point, {"x": 1}), (Point, {"x": 1, "y": 2, "z": 3}), (Point, [1, 2]), (Point, None),
        (Point, {"x": 1, "y": 2, "__class__": 3}), (Point, {"x": 1, "y": 2, "__dict__": 3}),
        (Point, {"x": 1, "y": 2, "__dict__": {5: 6}}),
        (Slotted, {"a": 1, "b": 2, "__dict__": {"c": 1}}),
        (Pair, {"left": 1}), (Pair, {"left": 1, "right": 2, "__dict__": {"x": 1}}),
        (Struct, {"some_field": 1}), (Struct, {"someField": 1, "other": 1}),
        (Model, {"x": 1, "items": [], "_private": 1}), (Model, {"x": 1, "": 5}), (Model, 5),
        (Color, "BLUE"), (Color, 1), (Color, []), (Color, "__class__"), (Bits, "A"), (Bits, True),
        (Level, 1),
    ],
)  # fmt: skip
def test_states_that_do_not_fit_are_refused(cls: type, state: Any) -> None:
    with pytest.raises(DecodeError):
        decode(registered_body(wire_name(cls), state), [])


def test_fields_the_other_side_has_not_are_named() -> None:
    with pytest.raises(DecodeError, match=r"fields \['x', 'z'\] came, Point has \['x', 'y'\] here"):
        decode(registered_body(wire_name(Point), {"x": 1, "z": 2}), [])
    body = Ext(Tag.SET, encode_tree([]))
    with pytest.raises(DecodeError, match=r"fields \['y'\] came, which Model has not"):
        decode(registered_body(wire_name(Model), {"x": 1, "items": [], "y": 1, "": body}), [])


def test_an_object_with_reduce_is_never_pickled() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            raise AssertionError("pickled")

        __reduce_ex__ = __reduce__  # type: ignore[assignment]
        __getstate__ = __reduce__

    for value in (Bomb(), [Bomb()], {"a": Bomb()}, {Bomb()}, Point(1, Bomb())):
        with pytest.raises(EncodeError, match="type Bomb"):
            encode(value)


def test_several_threads_encode_at_once() -> None:
    values = [[Point(i, (i, np.arange(i)))] * 20 for i in range(8)]
    wrong: list[Any] = []

    def work(value: Any) -> None:
        for _ in range(50):
            encoded = encode(value)
            received = decode(encoded.header, land(encoded))
            if [p.x for p in received] != [p.x for p in value]:
                wrong.append(received)

    threads = [threading.Thread(target=work, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
