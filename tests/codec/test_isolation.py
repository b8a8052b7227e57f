"""What the codec imports, and what it does where torch or PIL are not there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import omni_async.codec

ROOM = Path(omni_async.codec.__file__).parent
FORBIDDEN = {
    "pickle",
    "marshal",
    "asyncio",
    "threading",
    "time",
    "socket",
    "shelve",
    "dill",
    "importlib",
}


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_room_imports_no_pickle_no_loop_no_thread_no_clock() -> None:
    for file in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            found = {name.split(".")[0] for name in names}
            assert not found & FORBIDDEN, (file, found)
            if isinstance(node, (ast.Import, ast.ImportFrom)) and found & {"torch", "PIL"}:
                assert node.col_offset > 0, f"{file} imports {found} at its top"


def test_encoding_imports_neither_torch_nor_pil() -> None:
    run(
        "import sys, numpy\n"
        "from omni_async.codec import decode, encode, register_type\n"
        "encoded = encode({'a': [1, (2,)], 'b': numpy.float32(1), 'c': b'x', 'd': 1 << 70})\n"
        "assert decode(encoded.header, [])['a'] == [1, (2,)]\n"
        "assert not {'torch', 'PIL'} & set(sys.modules), sorted(sys.modules)\n"
    )


WITHOUT = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "PIL"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def test_without_torch_and_pil_everything_else_works() -> None:
    run(
        WITHOUT + "import numpy as np\n"
        "from omni_async.codec import decode, encode, register_type\n"
        "from omni_async.errors import EncodeError\n"
        "value = {'a': np.arange(3), 'b': (1, {2}), 'c': b'x' * 9000, 'd': np.str_('x')}\n"
        "encoded = encode(value)\n"
        "buffers = []\n"
        "for frame in encoded.frames:\n"
        "    buffers.append(np.zeros(frame.nbytes, np.uint8))\n"
        "    frame.copy_into(memoryview(buffers[-1]))\n"
        "received = decode(encoded.header, buffers)\n"
        "assert received['a'].tolist() == [0, 1, 2] and received['b'] == (1, {2})\n"
        "assert received['c'] == b'x' * 9000 and type(received['d']) is np.str_\n"
        "try:\n    encode([object()])\n"
        "except EncodeError as error:\n    assert 'register_type(object)' in str(error)\n"
        "else:\n    raise SystemExit('taken')\n"
    )


def test_without_torch_a_tensor_is_one_decode_error() -> None:
    torch_header = "4f410100"  # magic and version, see the format
    run(
        WITHOUT + "import struct, zlib, numpy as np\n"
        "from omni_async.codec import decode\n"
        "from omni_async.errors import DecodeError\n"
        "body = b'\\xc7\\x0d\\x01' + struct.pack('<IBQ', 0, 11, 2)\n"
        f"header = bytes.fromhex('{torch_header}') + struct.pack('<I', zlib.crc32(body)) + body\n"
        "try:\n    decode(header, [np.zeros(8, np.uint8)])\n"
        "except DecodeError as error:\n    assert 'torch cannot be imported here' in str(error), error\n"
        "else:\n    raise SystemExit('taken')\n"
    )


def test_torch_imported_after_the_codec_is_noticed() -> None:
    import pytest

    pytest.importorskip("torch")
    run(
        "from omni_async.codec import encode\n"
        "encode({'a': (1,)})\n"
        "import torch\n"
        "assert encode(torch.ones(3)).fast\n"
        "assert encode([torch.nn.Parameter(torch.ones(3)), torch.float32]).frames[0].nbytes == 12\n"
    )
