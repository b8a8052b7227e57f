"""What `omni_async.kv` shows, and what it costs to look."""

from __future__ import annotations

from tests.test_packaging import python


def test_every_name_is_there_and_listed_without_torch() -> None:
    printed = python(
        "import sys, omni_async.kv as kv\n"
        "print([name for name in sys.modules if name.startswith('omni_async.kv.')])\n"
        "assert all(hasattr(kv, name) for name in kv.__all__)\n"
        "assert set(kv.__all__) <= set(dir(kv))\n"
        "print('torch' in sys.modules)"
    )
    assert printed == "[]\nFalse\n"


def test_transfers_alone_import_neither_torch_nor_zmq() -> None:
    printed = python(
        "import sys\n"
        "from omni_async.kv import KVConsumer, KVLayout, KVMemory, KVProducer, plan_moves\n"
        "print([name for name in ('torch', 'zmq') if name in sys.modules])"
    )
    assert printed == "[]\n"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    printed = python(
        "import omni_async.kv as kv\n"
        "try:\n    kv.no_such_name\n"
        "except AttributeError as error:\n    print(error)"
    )
    assert "no_such_name" in printed
