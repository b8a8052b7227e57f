"""The engine on the vendor's real library, between two processes: its xgmi, on memory of the host in a GPU's place.

In: the wheel of ``amd-mori`` 1.2 for CPython 3.10, that Python with this package, a C compiler. Out: the vendor's own code
takes our calls as the double does.
Never: needs a GPU, or shows anything of one; RDMA cannot be had this way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.backends.mori.fake_hip import build
from tests.backends.test_signatures import WHEELS

pytestmark = pytest.mark.soak

ROOT = Path(__file__).parents[3]
PYTHON = Path(
    os.environ.get("OMNI_ASYNC_PYTHON310", ROOT / ".nox" / "tests-minimal-3-10" / "bin" / "python")
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables with which the real library loads."""
    wheels = sorted(WHEELS.glob("amd_mori-1.2.*-cp310-*.whl"))
    if not wheels:
        pytest.skip("no wheel of amd-mori 1.2 for CPython 3.10: nox -s signatures fetches it")
    if not PYTHON.exists():
        pytest.skip("no CPython 3.10 with this package: nox -s tests-minimal-3.10 makes one")
    for tool in ("gcc", "readelf"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    unpacked = tmp_path / "wheel"
    with zipfile.ZipFile(wheels[-1]) as files:
        files.extractall(unpacked, [one for one in files.namelist() if one.startswith("mori/")])
    build(unpacked, tmp_path)
    path = os.pathsep.join(map(str, (ROOT, tmp_path / "python", unpacked)))
    libraries = {"LD_LIBRARY_PATH": str(tmp_path / "lib"), "PYTHONPATH": path}
    return {**os.environ, **libraries}


def test_the_real_library_takes_our_calls(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [str(PYTHON), "-m", "tests.backends.mori.real_agent"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen == {
        "arrived": [1, 4096, (64 << 20) + 1, 186 << 20],
        "in pieces": 64 * 64,
        "overrun": "out of bounds",
        "underrun": "out of bounds",
        "nonsense": [True, True, True],
        "failed": "ERR_BAD_STATE",
        "another engine": True,
        "threads": 1,
        "receiver": 0,
    }
