"""How much memory a process may use, in systems that tests make up."""

from __future__ import annotations

import resource

import pytest

from omni_async.errors import ConfigError
from omni_async.pool.allowance import (
    DEFAULT_CEILING,
    Reader,
    checked_limit,
    memory_allowance,
)

GIB = 1 << 30
MEMINFO = "MemTotal:       {} kB\nMemFree:  1000 kB\nMemAvailable: 900 kB\n"

V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "32 23 0:28 {root} /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory\n"
)


def _system(files: dict[str, str], total: int = 64 * GIB) -> Reader:
    files = {"/proc/meminfo": MEMINFO.format(total // 1024), **files}

    def read(path: str) -> str:
        try:
            return files[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    return read


def _v2(path: str, limits: dict[str, str], root: str = "/") -> Reader:
    files = {f"/sys/fs/cgroup{where}/memory.max": text for where, text in limits.items()}
    files["/proc/self/cgroup"] = f"0::{path}\n"
    files["/proc/self/mountinfo"] = "22 1 8:1 / / rw - ext4 /dev/sda rw\n" + V2.format(root=root)
    return _system(files)


def test_physical_memory_without_any_cgroup() -> None:
    assert memory_allowance(_system({})) == 64 * GIB


def test_without_proc_the_library_knows() -> None:
    def read(path: str) -> str:
        raise PermissionError(path)

    assert 0 < memory_allowance(read) < 1 << 60
    assert 0 < memory_allowance(_system({"/proc/meminfo": "nonsense\nMemTotal:\n"})) < 1 << 60


def test_own_cgroup() -> None:
    assert memory_allowance(_v2("/a/b", {"/a/b": f"{2 * GIB}\n"})) == 2 * GIB


def test_the_least_of_all_parents_counts() -> None:
    limits = {"/a/b/c": f"{8 * GIB}\n", "/a/b": "max\n", "/a": f"{3 * GIB}\n", "": "max"}
    assert memory_allowance(_v2("/a/b/c", limits)) == 3 * GIB


def test_a_limit_above_physical_memory_changes_nothing() -> None:
    assert memory_allowance(_v2("/a", {"/a": f"{500 * GIB}\n"})) == 64 * GIB


def test_a_container_that_sees_its_own_cgroup_as_the_root() -> None:
    assert memory_allowance(_v2("/", {"": f"{GIB}\n"})) == GIB


def test_a_container_whose_mount_begins_at_its_cgroup() -> None:
    reader = _v2("/docker/abc", {"": f"{GIB}\n", "/docker/abc": "5"}, root="/docker/abc")
    assert memory_allowance(reader) == GIB
    reader = _v2("/docker/abc/x", {"": "max", "/x": f"{GIB}\n"}, root="/docker/abc")
    assert memory_allowance(reader) == GIB


def test_a_mount_that_shows_another_part_of_the_tree() -> None:
    assert memory_allowance(_v2("/other", {"": f"{GIB}\n"}, root="/docker/abc")) == GIB
    assert memory_allowance(_v2("/../..", {"": f"{GIB}\n"})) == GIB


def test_version_1() -> None:
    base = "/sys/fs/cgroup/memory"
    files = {
        "/proc/self/cgroup": "5:cpu:/a\n4:memory:/a/b\n0::/\n",
        "/proc/self/mountinfo": "short line\n" + V1.format(root="/"),
        f"{base}/a/b/memory.limit_in_bytes": "9223372036854771712\n",
        f"{base}/a/memory.limit_in_bytes": f"{4 * GIB}\n",
        "/sys/fs/cgroup/cpu/a/memory.limit_in_bytes": "1\n",  # not where memory is limited
    }
    assert memory_allowance(_system(files)) == 4 * GIB


def test_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GIB, resource.RLIM_INFINITY))
    assert memory_allowance(_system({})) == GIB


def test_this_machine() -> None:
    assert 64 << 20 < memory_allowance() < 1 << 60
    assert checked_limit(1 << 20) == 1 << 20


def test_the_default_is_a_quarter_and_4_gib_at_most() -> None:
    assert checked_limit(None, allowance=2 * GIB) == GIB // 2
    assert checked_limit(None, allowance=64 * GIB) == DEFAULT_CEILING == 4 * GIB


def test_a_limit_above_the_allowance_is_refused_with_both_numbers() -> None:
    assert checked_limit(2 * GIB, allowance=2 * GIB) == 2 * GIB
    with pytest.raises(
        ConfigError, match=r"my_size is 2,147,483,649 .* only 2,147,483,648"
    ) as info:
        checked_limit(2 * GIB + 1, allowance=2 * GIB, setting="my_size")
    assert info.value.path == "my_size"


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_limit_is_positive(nbytes: int) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        checked_limit(nbytes, allowance=GIB)
