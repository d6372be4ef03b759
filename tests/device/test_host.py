"""What a process may still take of memory and CPUs, from the files that the kernel and the control groups show."""

import os

import pytest

from pilotlight.device.host import available_bytes, usable_cpus

GB = 10**9


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "proc/meminfo", "MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable:   8000000 kB\n")
    return tmp_path


def write(root, name, text):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def v2(root, path, limit, usage=0, inactive=0):
    directory = f"sys/fs/cgroup/{path}"
    write(root, f"{directory}/memory.max", f"{limit}\n")
    write(root, f"{directory}/memory.current", f"{usage}\n")
    write(root, f"{directory}/memory.stat", f"anon 5\ninactive_file {inactive}\nactive_file 7\n")


def v1(root, path, limit, usage=0, inactive=0):
    directory = f"sys/fs/cgroup/memory/{path}"
    write(root, f"{directory}/memory.limit_in_bytes", f"{limit}\n")
    write(root, f"{directory}/memory.usage_in_bytes", f"{usage}\n")
    write(root, f"{directory}/memory.stat", f"inactive_file 3\ntotal_inactive_file {inactive}\n")


def test_here():
    assert 10**6 < available_bytes() < 10**14


def test_no_control_groups(root):
    assert available_bytes(root) == 8000000 * 1024


def test_v2_in_a_container_sees_its_own_group_as_the_root(root):
    write(root, "proc/self/cgroup", "0::/\n")
    v2(root, "", 4 * GB, usage=3 * GB, inactive=GB)
    assert available_bytes(root) == 2 * GB


def test_v2_the_tightest_of_the_enclosing_groups_counts(root):
    write(root, "proc/self/cgroup", "0::/system.slice/server.service\n")
    v2(root, "system.slice/server.service", "max")
    v2(root, "system.slice", 3 * GB, usage=GB)
    assert available_bytes(root) == 2 * GB
    v2(root, "system.slice/server.service", 2 * GB, usage=GB)
    assert available_bytes(root) == GB


def test_v2_a_limit_above_the_machines_memory(root):
    write(root, "proc/self/cgroup", "0::/\n")
    v2(root, "", 100 * GB)
    assert available_bytes(root) == 8000000 * 1024


def test_v2_a_group_that_is_over_its_limit(root):
    write(root, "proc/self/cgroup", "0::/\n")
    v2(root, "", GB, usage=2 * GB)
    assert available_bytes(root) == 0


def test_v1(root):
    write(root, "proc/self/cgroup", "12:cpu,cpuacct:/docker/x\n9:memory:/docker/x\n1:name=systemd:/docker/x\n")
    v1(root, "docker/x", 4 * GB, usage=3 * GB, inactive=GB)
    assert available_bytes(root) == 2 * GB


def test_v1_in_a_container_that_shows_the_hosts_path(root):
    write(root, "proc/self/cgroup", "9:memory:/docker/x\n")
    v1(root, "", 4 * GB, usage=GB)
    assert available_bytes(root) == 3 * GB


def test_v1_no_limit(root):
    write(root, "proc/self/cgroup", "9:memory:/\n")
    v1(root, "", 9223372036854771712)
    assert available_bytes(root) == 8000000 * 1024


def test_both_versions_at_once(root):
    write(root, "proc/self/cgroup", "9:memory:/a\n0::/b\n")
    v1(root, "a", 5 * GB)
    v2(root, "b", 4 * GB)
    assert available_bytes(root) == 4 * GB


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("300000 100000", 3), ("250000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)],
)
def test_cpus_within_a_v2_quota(root, monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    write(root, "proc/self/cgroup", "0::/pod/container\n")
    write(root, "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    write(root, "sys/fs/cgroup/pod/cpu.max", f"{quota}\n")
    assert usable_cpus(root) == expected


@pytest.mark.parametrize(("quota", "expected"), [(-1, 8), (300000, 3), (50000, 1)])
def test_cpus_within_a_v1_quota(root, monkeypatch, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    write(root, "proc/self/cgroup", "12:cpu,cpuacct:/docker/x\n9:memory:/docker/x\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
    write(root, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cpus(root) == expected


def test_cpus_here():
    assert 1 <= usable_cpus() <= len(os.sched_getaffinity(0))
