"""What the wheel of ``amd-mori`` needs of its system to be loaded where no ROCm is: libraries made of nothing.

In: an unpacked wheel, a C compiler. Out: a folder for ``LD_LIBRARY_PATH``, and one for ``PYTHONPATH`` with a module ``torch``.
Never: is taken for a GPU.

Every name that the wheel's libraries miss is a function that returns 0, or zeros where it is data; ``fake_hip.c`` has
those that do something.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).parent
NEEDED = (
    *("libamdhip64.so.7", "libhsa-runtime64.so.1", "libdrm.so.2", "libdrm_amdgpu.so.1"),
    *("libpci.so.3", "libnuma.so.1", "libprotobuf.so.23", "libgrpc++.so.1", "libgrpc.so.10"),
    "libgpr.so.10",
)
_ELSEWHERE = re.compile(r"_?Py|__gmon|_ITM|__cxa|_ZNSt|_ZSt|_ZNKSt|_ZTISt|_ZTVSt")
"""Names that Python and the C++ runtime bring."""
_BROUGHT = re.compile(r"GLIBC|GCC|CXXABI")
_DATA = re.compile(r"_ZT[VIS]|_ZN6google8protobuf8internal26fixed")


def _names(library: Path) -> list[tuple[bool, str, str]]:
    """Whether it is there, its name, its version."""
    command = ["readelf", "-W", "--dyn-syms", str(library)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = []
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[0].rstrip(":").isdigit():
            name, _, version = fields[7].partition("@")
            found.append((fields[6] != "UND", name, version.lstrip("@")))
    return found


def build(unpacked: Path, folder: Path) -> None:
    """Make ``folder/lib`` and ``folder/python``."""
    names = [one for path in (unpacked / "mori").glob("libmori_*.so") for one in _names(path)]
    there = {name for defined, name, _ in names if defined}
    missing: defaultdict[str, set[str]] = defaultdict(set)
    for defined, name, version in names:
        wanted = not defined and name not in there and not _ELSEWHERE.match(name)
        if wanted and not _BROUGHT.match(version):
            missing[version].add(name)
    source = HERE / "fake_hip.c"
    done = set(re.findall(r"^[\w *]+\*?\b(hip\w+)\(", source.read_text(), re.MULTILINE))
    lines = [".text"]
    for name in sorted({name for group in missing.values() for name in group} - done):
        if _DATA.match(name):
            lines.append(f'.data\n.globl "{name}"\n.balign 16\n"{name}": .fill 512,1,0\n.text')
        else:
            lines.append(
                f'.globl "{name}"\n.type "{name}",@function\n"{name}": xorl %eax,%eax\nret'
            )
    lines.append('.section .note.GNU-stack,"",@progbits\n')
    nothing, versions = folder / "nothing.s", folder / "versions"
    nothing.write_text("\n".join(lines))
    versions.write_text(
        "\n".join(
            f"{version} {{ global: {'; '.join(sorted(group))}; }};"
            for version, group in missing.items()
            if version
        )
    )
    made = folder / "made.so"
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", str(made), str(source), str(nothing)]
    subprocess.run([*command, f"-Wl,--version-script={versions}", "-lpthread"], check=True)
    libraries, python = folder / "lib", folder / "python"
    libraries.mkdir()
    for name in NEEDED:
        (libraries / name).symlink_to(made)
    python.mkdir()
    (python / "torch.py").write_text("class Tensor:\n    pass\n")
