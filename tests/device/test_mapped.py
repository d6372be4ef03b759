"""What was copied from a mapped file is given back, and can be read again."""

import mmap
import re
from pathlib import Path

from pilotlight.device.layout import Extent, Layout, Placed
from pilotlight.device.mapped import forget, tensors_of

PAGES = 64


def resident(file: Path) -> int:
    """kB of its mappings that take memory."""
    found = re.search(rf" {re.escape(str(file))}\n(?:.*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    assert found
    return int(found[1])


def test_a_forgotten_piece_takes_no_memory_and_can_be_read_again(tmp_path: Path) -> None:
    file, nbytes = tmp_path / "weights", PAGES * mmap.PAGESIZE
    content = bytes(range(256)) * (nbytes // 256)
    file.write_bytes(content)
    tensor = Placed("a", "F32", (nbytes // 4 - 16,), 0, nbytes - 64)
    layout = Layout((tensor,), (Extent(file, 32, nbytes - 64, 0),), nbytes)
    ((_, (view,)),) = tensors_of(layout)
    assert resident(file) == nbytes // 1024
    forget(view)
    assert resident(file) == 2 * mmap.PAGESIZE // 1024  # it began and ended within a page
    assert bytes(view) == content[32:-32]
