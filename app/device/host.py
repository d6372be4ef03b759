"""What of the host a process may still take: the machine's memory and CPUs, within the limits of its control groups.

Apart from the devices, since every one that computes on the host asks it, before numpy is imported. A container's
limits are invisible in /proc/meminfo and in the count of CPUs; a process over the first is killed, and one with more
threads than the second waits for itself. Formats: cgroups(7), and the kernel's cgroup-v2.rst.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_NO_LIMIT = 1 << 60  # cgroup v1 says "no limit" as a number near 2^63


def available_bytes(root: Path = _ROOT) -> int:
    """Bytes that can be taken now without swapping, and without passing a limit of any enclosing control group.

    `root` is where /proc and /sys are, for tests. Page cache counts as free.
    """
    rooms = [_room(directory, is_v2) for directory, is_v2 in _groups(root, "memory")]
    return min([_machine(root), *(room for room in rooms if room is not None)])


def usable_cpus(root: Path = _ROOT) -> int:
    """CPUs that can be busy at once, at least 1: those this process may run on, within every enclosing quota."""
    quotas = [_quota(directory, is_v2) for directory, is_v2 in _groups(root, "cpu")]
    cpus = min([float(len(os.sched_getaffinity(0))), *(quota for quota in quotas if quota is not None)])
    return max(1, int(cpus))


def _machine(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _groups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The control groups that enclose this process, the innermost first: directory, and whether it is v2."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / (controller if controllers else "")
        # In a container the path may be the host's while only its own group is mounted: then no such directory
        # exists, and the mount itself is the group.
        group = mount / path.lstrip("/")
        for directory in (group, *group.parents):
            yield directory, not controllers
            if directory == mount:
                break


def _room(directory: Path, is_v2: bool) -> int | None:
    """Bytes that a group has left; None without a limit."""
    if is_v2:
        limit_file, usage_file, reclaimable = "memory.max", "memory.current", "inactive_file"
    else:
        limit_file, usage_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        reclaimable = "total_inactive_file"
    try:
        limit = (directory / limit_file).read_text().strip()
        if limit == "max" or int(limit) >= _NO_LIMIT:
            return None
        usage = int((directory / usage_file).read_text())
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(0, int(limit) - usage + int(stat.get(reclaimable, 0)))


def _quota(directory: Path, is_v2: bool) -> float | None:
    """CPUs that a group may keep busy; None without a quota."""
    try:
        if is_v2:
            quota, period = (directory / "cpu.max").read_text().split()
        else:
            quota = (directory / "cpu.cfs_quota_us").read_text()
            period = (directory / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # "max" is no number
        return None
