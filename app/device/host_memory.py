"""How much memory a process may still take: the machine's, within the limits of its control groups.

Apart from the devices, since every one that computes in host memory asks it. A container's limit is invisible in
/proc/meminfo, and a process that goes over it is killed.
"""

from pathlib import Path

_ROOT = Path("/")
_NO_LIMIT = 1 << 60  # cgroup v1 says "no limit" as a number near 2^63


def available_bytes(root: Path = _ROOT) -> int:
    """Bytes that can be taken now without swapping, and without passing a limit of any enclosing control group.

    `root` is where /proc and /sys are, for tests. Page cache counts as free.
    """
    return min([_machine(root), *_control_groups(root)])


def _machine(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _control_groups(root: Path) -> list[int]:
    """What each enclosing group with a limit has left. Formats: cgroups(7), and the kernel's cgroup-v2.rst."""
    left = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage, reclaimable = "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            mount, limit, usage = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            reclaimable = "total_inactive_file"
        else:
            continue
        # In a container the path may be the host's while only its own group is mounted: then no such directory
        # exists, and the mount itself is the group.
        group = root / mount / path.lstrip("/")
        for directory in (group, *group.parents):
            room = _room(directory, limit, usage, reclaimable)
            if room is not None:
                left.append(room)
            if directory == root / mount:
                break
    return left


def _room(directory: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    try:
        limit = (directory / limit_file).read_text().strip()
        if limit == "max" or int(limit) >= _NO_LIMIT:
            return None
        usage = int((directory / usage_file).read_text())
        stat = dict(line.split() for line in (directory / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(0, int(limit) - usage + int(stat.get(reclaimable, 0)))
