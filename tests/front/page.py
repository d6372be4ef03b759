"""What the tests of the page share: where it says what, and how a person asks."""

from collections.abc import Callable

from tests.front.browser import Page

Open = Callable[..., Page]  # the fixture open_page

SAYS = "The quick brown fox jumps over the lazy dog. "
STATE = "document.body.dataset.state"
ANSWER = "(document.querySelector('#log article:last-of-type .text')?.textContent ?? '')"  # the last turn's
NOTE = "(document.querySelector('#log article:last-of-type .note')?.textContent ?? '')"


def text_of(id: str) -> str:
    """The expression for an element's text."""
    return f"document.getElementById({id!r}).textContent"


def ask(page: Page, question: str) -> None:
    page.click("#prompt")
    page.write(question)
    page.press("Enter")
    page.wait("document.querySelector('#log article.assistant') !== null")
