import time
from datetime import datetime

import jinja2
import pytest

from pilotlight.text import sandbox


def render(source, seconds=sandbox.MAX_SECONDS, **variables):
    return sandbox.render(sandbox.compile_template(source), variables, seconds)


def test_whitespace_is_treated_as_in_transformers():
    assert render("a\n  {% if true %}\nb\n  {% endif %}\nc\n") == "a\nb\nc"


def test_break_and_continue():
    source = (
        "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert render(source) == "023"


def test_generation_blocks_are_transparent():
    assert render("a{% generation %}{{ x }}{% endgeneration %}b", x=1) == "a1b"


def test_loop_variables_work_in_watched_loops():
    source = (
        "{% for x in items %}{{ loop.index }}{{ loop.revindex }}{{ loop.length }}{{ loop.first }}{{ loop.last }}"
        "{{ loop.previtem }}{{ loop.nextitem }};{% else %}none{% endfor %}"
    )
    environment = jinja2.Environment()
    for items in ([], ["a"], ["a", "b", "c"]):
        assert render(source, items=items) == environment.from_string(source).render(items=items)
    assert render("{% for k, v in d | items if v %}{{ k }}{% endfor %}", d={"a": 0, "b": 1}) == "b"
    assert (
        render("{% for x in t recursive %}{{ x.n }}{{ loop(x.c) }}{% endfor %}", t=[{"n": 1, "c": [{"n": 2}]}])
        == "12"
    )


def test_D12_strftime_now():
    before = datetime.now()
    shown = render("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}|{{ strftime_now('%d %b %Y') }}")
    precise, day = shown.split("|")
    assert before.replace(microsecond=0) <= datetime.strptime(precise, "%Y-%m-%d %H:%M:%S") <= datetime.now()
    assert day in (before.strftime("%d %b %Y"), datetime.now().strftime("%d %b %Y"))


def test_D14_tojson():
    value = {"b": "é<&'", "a": [1, None]}
    assert render("{{ v | tojson }}", v=value) == """{"b": "é<&'", "a": [1, null]}"""
    assert render("{{ v | tojson(ensure_ascii=True) }}", v="é") == '"\\u00e9"'
    assert render("{{ v | tojson(ensure_ascii=False) }}", v="é") == '"é"'
    assert render("{{ v | tojson(indent=4) }}", v=[1]) == "[\n    1\n]"
    assert (
        render("{{ v | tojson(separators=(',', ':'), sort_keys=True) }}", v=value) == """{"a":[1,null],"b":"é<&'"}"""
    )


def test_D02_raise_exception():
    with pytest.raises(sandbox.Refusal, match=r"^no such role$"):
        render("{{ raise_exception('no such role') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ x.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ items.append(1) }}",
        "{{ items.clear() }}",
    ],
)
def test_D18_templates_are_sandboxed(source):
    with pytest.raises(jinja2.exceptions.SecurityError):
        render(source, x=3, items=[1])


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(25000) %}{% for b in range(25000) %}{% endfor %}{% endfor %}",
        "{% for a in range(25000) %}{% for b in range(25000) %}x{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(100) }}",
    ],
)
def test_D18_a_template_that_runs_on_is_stopped(source):
    begun = time.monotonic()
    with pytest.raises(sandbox.LimitError, match="takes too long"):
        render(source, seconds=0.2)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * ['x'] }}",
        "{{ 10 ** 100000 }}",
        "{% set ns = namespace(n=2**64) %}{% for i in range(99) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{% for i in range(99) %}{{ 'x' * 10 ** 6 }}{% endfor %}",
    ],
)
def test_D18_a_template_that_grows_is_stopped(source):
    with pytest.raises(sandbox.LimitError, match=r"it (repeats|raises|writes)"):
        render(source)


def test_D18_ranges_are_bounded():
    with pytest.raises(OverflowError):
        render("{% for i in range(10 ** 9) %}{% endfor %}")


def test_ordinary_arithmetic_works():
    assert render("{{ '-' * 3 }}{{ 3 * 4 }}{{ 2 ** 10 }}{{ [1] * 2 }}{{ 1.5 * 2 }}") == "---121024[1, 1]3.0"
