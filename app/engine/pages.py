"""The pool of KV pages: who holds each, and which hold content that a later prompt can reuse.

Apart from the scheduler because correctness of reuse rests on this file alone. It knows page numbers and blocks
of tokens; the K/V itself lies on the device, addressed by the same numbers.

    page     0     1     2     3     4     5     6     7
           held  held  free  held  free  free  fresh fresh
    holds    2     1     0     1     0     0     0     0      sequences
    content  A     A>B   A>C    -    D      -     -     -     a full block of tokens behind its prefix

Pages are taken in this order: free ones without content (5), the lowest that was never used (6), and then the free
one with content whose last holder left first (4 or 2), which loses its content. So what was touched stays compact,
and content is kept as long as there is any other page.

A block counts as known only behind the same prefix. Each content gets a number of its own, never used again, and
the index maps (number of the content before it, the block's tokens) to a page: a dictionary hashes that pair
and compares the tokens, so what is found is exactly the prompt's prefix, whatever collides.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from ..settings import PAGE_SIZE

ROOT = 0  # the content number before a sequence's first page


class IntegrityError(RuntimeError):
    """The pool's books do not agree: a bug in the engine."""


class _Content(msgspec.Struct, frozen=True):
    """A full page: `parent` is the number of the content before it, `block` its tokens as int32 bytes."""

    number: int
    parent: int
    block: bytes

    @property
    def key(self) -> tuple[int, bytes]:
        return self.parent, self.block


class PagePool:
    """`num_pages` pages. Every operation on a page takes constant time."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        self._contents: list[_Content | None] = [None] * num_pages
        self._blank: list[int] = []  # free, without content; the last is taken first
        self._fresh = 0  # pages from here on were never taken
        self._cached: OrderedDict[int, None] = OrderedDict()  # free, with content; the first is taken first
        self._index: dict[tuple[int, bytes], int] = {}
        self._last_number = ROOT

    @property
    def available(self) -> int:
        """Pages that `take` can give."""
        return len(self._blank) + self.num_pages - self._fresh + len(self._cached)

    @property
    def used(self) -> int:
        """Pages that somebody holds."""
        return self.num_pages - self.available

    @property
    def cached(self) -> int:
        """Free pages that keep content for reuse."""
        return len(self._cached)

    def find(self, blocks: Iterable[bytes]) -> list[int]:
        """The pages that hold the longest known run of `blocks` from the start of a prompt. Nobody holds them yet."""
        found: list[int] = []
        number = ROOT
        for block in blocks:
            page = self._index.get((number, block))
            if page is None:
                break
            found.append(page)
            number = self.content_number(page)
        return found

    def idle(self, pages: Iterable[int]) -> int:
        """How many of `pages` nobody holds: holding them takes that many from `available`."""
        return sum(not self._holders[page] for page in pages)

    def hold(self, pages: Iterable[int]) -> None:
        """One holder more for each page that `find` gave."""
        for page in pages:
            if not self._holders[page]:
                del self._cached[page]
            self._holders[page] += 1

    def take(self, count: int) -> list[int]:
        """`count` pages for one holder, their content lost. There must be that many `available`."""
        return [self._take_one() for _ in range(count)]

    def _take_one(self) -> int:
        if self._blank:
            page = self._blank.pop()
        elif self._fresh < self.num_pages:
            page = self._fresh
            self._fresh += 1
        else:
            page, _ = self._cached.popitem(last=False)
            content = self._contents[page]
            if content is None:
                raise IntegrityError(f"page {page} is cached without content")
            del self._index[content.key]
            self._contents[page] = None
        self._holders[page] = 1
        return page

    def release(self, pages: Sequence[int]) -> None:
        """One holder fewer for each page of a sequence, given in the sequence's order.

        The last page is let go first, so that a prefix outlives what stands behind it.
        """
        for page in reversed(pages):
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if self._contents[page] is None:
                self._blank.append(page)
            else:
                self._cached[page] = None

    def forget(self) -> None:
        """Every free page loses its content, since K/V that were computed lately may be wrong."""
        for page in self._cached:
            content = self._contents[page]
            if content is not None:
                del self._index[content.key]
            self._contents[page] = None
        self._blank += self._cached
        self._cached.clear()

    def publish(self, page: int, parent: int, block: bytes) -> int:
        """Makes a held page that is now full known under its content, and returns the page to use from now on.

        Where the same content is known already, the caller's hold moves to the page that has it.
        `parent` is the `content_number` of the page before, or ROOT.
        """
        known = self._index.get((parent, block))
        if known is not None:
            self.hold([known])
            self.release([page])
            return known
        self._last_number += 1
        content = _Content(self._last_number, parent, block)
        self._contents[page] = content
        self._index[content.key] = page
        return page

    def content_number(self, page: int) -> int:
        """The number of a published page's content."""
        content = self._contents[page]
        if content is None:
            raise IntegrityError(f"page {page} has no content")
        return content.number

    def check_integrity(self, holds: Iterable[Sequence[int]]) -> None:
        """Compares the books with `holds`, the pages of every sequence. Raises IntegrityError."""
        holders = [0] * self.num_pages
        for pages in holds:
            require(len(set(pages)) == len(pages), f"a sequence holds a page twice: {pages}")
            for page in pages:
                holders[page] += 1
        require(holders == self._holders, "the counts of holders are not those of the sequences")
        blank, cached = set(self._blank), set(self._cached)
        require(len(blank) == len(self._blank) and not blank & cached, "a free page is listed twice")
        numbers = {content.number for content in self._contents if content} | {ROOT}
        for page, content in enumerate(self._contents):
            is_free = page in blank or page in cached or page >= self._fresh
            require(is_free == (holders[page] == 0), f"page {page} is lost, or free while it is held")
            require((page in cached) == (is_free and content is not None), f"page {page} is in the wrong list")
            if content:
                require(self._index.get(content.key) == page, f"the index does not know page {page}")
                require(content.parent in numbers, f"page {page} outlived the page before it")
                require(len(content.block) == 4 * PAGE_SIZE, f"page {page} is known with part of a block")
        require(len(self._index) + 1 == len(numbers), "the index and the pages' contents differ")


def require(condition: bool, message: str) -> None:
    """Raises IntegrityError unless `condition` holds."""
    if not condition:
        raise IntegrityError(message)
