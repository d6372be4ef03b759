"""The page pool: what is found, what is taken first, and books that cannot be wrong unnoticed."""

from array import array

import pytest

from pilotlight.engine.pages import ROOT, IntegrityError, PagePool


def block(token: int) -> bytes:
    return array("i", [token] * 16).tobytes()


def publish(pool: PagePool, pages: list[int], tokens: list[int]) -> None:
    """Makes `pages` known as blocks of `tokens`, one behind the other; `pages` is updated in place."""
    for index, token in enumerate(tokens):
        parent = pool.content_number(pages[index - 1]) if index else ROOT
        pages[index] = pool.publish(pages[index], parent, block(token))


def known(pool: PagePool, tokens: list[int]) -> list[int]:
    return pool.find(block(token) for token in tokens)


def test_low_pages_come_first_and_come_back_first() -> None:
    pool = PagePool(6)
    first, second = pool.take(2), pool.take(2)
    assert (first, second) == ([0, 1], [2, 3])
    pool.release(first)
    assert pool.take(3) == [0, 1, 4]
    assert (pool.available, pool.used, pool.cached) == (1, 5, 0)


def test_a_prefix_is_found_behind_the_same_prefix_only() -> None:
    pool = PagePool(8)
    one, two = pool.take(3), pool.take(2)
    publish(pool, one, [1, 2, 3])
    publish(pool, two, [9, 2])
    assert known(pool, [1, 2, 3, 4]) == one
    assert known(pool, [9, 2, 3]) == two
    assert known(pool, [2, 3]) == []
    assert known(pool, [1, 3]) == one[:1]
    pool.check_integrity([one, two])


def test_tokens_are_compared_whatever_their_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    class Colliding(bytes):
        def __hash__(self) -> int:
            return 0

    pool = PagePool(4)
    pages = pool.take(2)
    pool.publish(pages[0], ROOT, Colliding(block(1)))
    pool.publish(pages[1], ROOT, Colliding(block(2)))
    assert pool.find([Colliding(block(1))]) == pages[:1]
    assert pool.find([Colliding(block(2))]) == pages[1:]
    assert pool.find([Colliding(block(3))]) == []


def test_content_outlives_its_holders_until_there_is_no_other_page() -> None:
    pool = PagePool(4)
    pages = pool.take(2)
    publish(pool, pages, [1, 2])
    pool.release(pages)
    assert (pool.used, pool.cached, pool.available) == (0, 2, 4)
    other = pool.take(2)
    assert other == [2, 3]
    assert known(pool, [1, 2]) == pages
    pool.check_integrity([other])


def test_I07_a_page_that_is_taken_again_is_not_found_under_its_old_content() -> None:
    pool = PagePool(2)
    pages = pool.take(2)
    publish(pool, pages, [1, 2])
    pool.release(pages)
    taken = pool.take(1)
    assert known(pool, [1, 2]) == [0]
    publish(pool, taken, [5])
    assert known(pool, [5]) == taken
    assert known(pool, [1, 2]) == [0]
    pool.check_integrity([taken])


def test_the_longest_unused_goes_first_and_a_prefix_after_what_stands_behind_it() -> None:
    pool = PagePool(4)
    old, new = pool.take(2), pool.take(2)
    publish(pool, old, [1, 2])
    publish(pool, new, [3, 4])
    pool.release(old)
    pool.release(new)
    pool.hold(old[:1])  # the first prompt's first page is used again
    pool.release(old[:1])
    assert pool.take(4) == [1, 3, 2, 0]


def test_the_same_content_computed_twice_becomes_one_page() -> None:
    pool = PagePool(4)
    one, two = pool.take(2), pool.take(2)
    publish(pool, one, [1, 2])
    publish(pool, two, [1, 2])
    assert one == two == [0, 1]
    pool.check_integrity([one, two])
    assert pool.available == 2
    pool.release(one)
    assert pool.used == 2
    pool.release(two)
    assert pool.used == 0
    pool.check_integrity([])


def test_idle_pages_are_counted_before_they_are_held() -> None:
    pool = PagePool(4)
    pages = pool.take(3)
    publish(pool, pages, [1, 2, 3])
    pool.release(pages)
    pool.hold(pages[:1])
    assert pool.idle(pages) == 2
    before = pool.available
    pool.hold(pages)
    assert pool.available == before - 2
    pool.check_integrity([pages[:1], pages])


def test_forget_drops_the_content_of_free_pages_only() -> None:
    pool = PagePool(6)
    held, free = pool.take(2), pool.take(2)
    publish(pool, held, [1, 2])
    publish(pool, free, [3, 4])
    pool.release(free)
    pool.forget()
    assert known(pool, [3, 4]) == []
    assert known(pool, [1, 2]) == held
    assert (pool.cached, pool.available) == (0, 4)
    pool.check_integrity([held])


def break_count(pool: PagePool) -> None:
    pool._holders[0] += 1


def break_blank(pool: PagePool) -> None:
    pool._blank.append(0)


def break_cached(pool: PagePool) -> None:
    del pool._cached[2]


def break_index(pool: PagePool) -> None:
    pool._index.clear()


def break_content(pool: PagePool) -> None:
    pool._contents[1] = None


def break_parent(pool: PagePool) -> None:
    content = pool._contents[2]
    assert content
    del pool._index[content.key]
    pool._contents[2] = None
    del pool._cached[2]
    pool._blank.append(2)


@pytest.mark.parametrize("damage", [break_count, break_blank, break_cached, break_index, break_content, break_parent])
def test_the_check_finds_each_kind_of_damage(damage: object) -> None:
    pool = PagePool(6)
    held, free = pool.take(2), pool.take(2)
    publish(pool, held, [1, 2])
    publish(pool, free, [3, 4])
    pool.release(free)
    pool.check_integrity([held])
    assert callable(damage)
    damage(pool)
    with pytest.raises(IntegrityError):
        pool.check_integrity([held])


def test_the_check_compares_with_the_holders() -> None:
    pool = PagePool(6)
    held = pool.take(2)
    with pytest.raises(IntegrityError, match="counts of holders"):
        pool.check_integrity([])
    with pytest.raises(IntegrityError, match="twice"):
        pool.check_integrity([[0, 0], held])
