import json

import pytest

from pilotlight.text.conversation import TemplateError, Traits, shape
from pilotlight.text.template import ChatTemplate
from tests.text.conversations import SPECIAL_TOKENS, call, template

USER = {"role": "user", "content": "u"}


def traits_of(source):
    return ChatTemplate({"default": source}, SPECIAL_TOKENS)._templates["default"].traits


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("chatml", {"strings": True, "parts": False, "no_content": "absent", "later_system": True}),
        ("llama3_tools", {"strings": True, "parts": False, "no_content": "absent", "arguments": "mapping"}),
        ("qwen_tools", {"no_content": "absent", "arguments": "mapping", "later_system": True}),
        ("mistral", {"strings": True, "later_system": False, "developer": False}),
        ("gemma", {"strings": True, "parts": False}),
        ("null_content", {"no_content": "null", "arguments": "text", "later_system": False}),
        ("parts", {"strings": False, "parts": True}),
    ],
)
def test_traits_of_known_forms(name, expected):
    traits = traits_of(template(name))
    assert {key: getattr(traits, key) for key in expected} == expected


def test_traits_of_a_template_that_takes_both_kinds_of_content():
    source = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for part in m.content %}{{ part['text'] }}{% endfor %}{% endif %}{% endfor %}"
    )
    traits = traits_of(source)
    assert traits.strings
    assert traits.parts


def test_traits_of_a_template_that_needs_blank_content():
    source = (
        "{% for m in messages %}{{ m.role + ':' + m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert traits_of(source).no_content == "blank"


def test_traits_of_a_broken_template_are_the_usual_ones():
    assert traits_of("{% for %}") == Traits(later_system=False)


def test_the_given_messages_stay_as_they_are():
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "d"}]},
        {"role": "assistant", "content": None, "tool_calls": [call('{"a": 1}')]},
    ]
    before = json.dumps(messages)
    shape(messages, Traits())
    assert json.dumps(messages) == before


def test_D03_parts_are_joined_or_kept():
    message = {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]}
    assert shape([message], Traits())[0]["content"] == "hi\nyou"
    assert shape([message], Traits(parts=True))[0]["content"] == message["content"]
    assert shape([USER], Traits(parts=True))[0]["content"] == "u"
    assert shape([USER], Traits(parts=True, strings=False))[0]["content"] == [{"type": "text", "text": "u"}]
    assert shape([{"role": "user", "content": []}], Traits())[0]["content"] == ""


@pytest.mark.parametrize(
    ("part", "match"),
    [
        (
            {"type": "image_url", "image_url": {"url": "x"}},
            r"messages\[0\]\.content\[1\]: .*text only, not 'image_url'",
        ),
        ({"type": "input_audio"}, "not 'input_audio'"),
        ({"type": "text"}, "expected"),
        ({"type": "text", "text": 3}, "expected"),
        ({}, "expected"),
        (7, "expected"),
    ],
)
def test_D03_parts_that_are_not_text_are_refused(part, match):
    with pytest.raises(TemplateError, match=match):
        shape([{"role": "user", "content": [{"type": "text", "text": "x"}, part]}], Traits())


@pytest.mark.parametrize("message", ["hi", {}, {"content": "x"}, {"role": 3}, None])
def test_D20_a_message_without_a_role_is_refused(message):
    with pytest.raises(TemplateError, match=r"messages\[1\]: expected"):
        shape([USER, message], Traits())


def test_D05_an_assistant_without_content_keeps_its_calls():
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call({})]}
    assert shape([message], Traits()) == [{"role": "assistant", "tool_calls": [call({})]}]
    assert shape([message], Traits(no_content="null"))[0]["content"] is None
    assert shape([message], Traits(no_content="blank"))[0]["content"] == ""
    spoken = message | {"content": "x"}
    assert shape([spoken], Traits(no_content="null"))[0]["content"] == "x"


@pytest.mark.parametrize(
    ("sent", "mapping", "text"),
    [
        ('{"city": "Paris"}', {"city": "Paris"}, '{"city": "Paris"}'),
        ({"city": "Zürich"}, {"city": "Zürich"}, '{"city": "Zürich"}'),
        ("", {}, ""),
        (None, {}, None),
        ("[1]", "[1]", "[1]"),
        ("not json", "not json", "not json"),
        ("[" * 100_000, "[" * 100_000, "[" * 100_000),
    ],
)
def test_D07_arguments(sent, mapping, text):
    def shaped(traits):
        message = {"role": "assistant", "tool_calls": [call(sent)]}
        return shape([message], traits)[0]["tool_calls"][0]["function"]["arguments"]

    assert shaped(Traits()) == mapping
    assert shaped(Traits(arguments="text")) == text


@pytest.mark.parametrize("calls", [["x"], [{}], [{"function": "f"}], [{"function": {}}]])
def test_D07_misshapen_calls_pass_through(calls):
    shaped = shape([{"role": "assistant", "tool_calls": calls}], Traits())
    assert len(shaped[0]["tool_calls"]) == 1


def says(role, content):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([says("developer", "d"), USER], [says("system", "d"), USER]),
        ([says("system", "s"), says("developer", "d"), USER], [says("system", "s\n\nd"), USER]),
        ([says("developer", "d"), says("system", "s"), USER], [says("system", "d\n\ns"), USER]),
        ([USER, says("developer", "d"), USER], [USER, says("system", "d"), USER]),
        ([says("system", "s"), says("system", "t"), USER], [says("system", "s"), says("system", "t"), USER]),
    ],
)
def test_D09_developer_is_system_to_templates_that_do_not_know_it(sent, expected):
    assert shape(sent, Traits()) == expected
    assert shape(sent, Traits(developer=True)) == sent


def test_D09_a_later_developer_message_joins_the_first_where_the_template_would_drop_it():
    traits = Traits(later_system=False)
    sent = [says("system", "s"), USER, says("developer", [{"type": "text", "text": "d"}])]
    assert shape(sent, traits) == [says("system", "s\n\nd"), USER]
    assert shape([USER, says("developer", "d")], traits) == [says("system", "d"), USER]


def test_D09_never_lost():
    for name in ("chatml", "qwen_tools", "mistral", "llama3_tools"):
        rendered = ChatTemplate({"default": template(name)}, SPECIAL_TOKENS).render(
            [USER, says("assistant", "a"), says("developer", "be brief"), says("user", "v")]
        )
        assert "be brief" in rendered
