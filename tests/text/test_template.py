import json

import pytest

from pilotlight.errors import PilotlightError
from pilotlight.text.template import ChatTemplate, TemplateError
from tests.text.conversations import (
    CONVERSATIONS,
    DATE,
    GOLDENS,
    SPECIAL_TOKENS,
    call,
    names,
    render_with_transformers,
    template,
)

HI = [{"role": "user", "content": "hi"}]


def make(source, **tokens):
    return ChatTemplate({"default": source}, tokens or SPECIAL_TOKENS)


def as_sent(messages):
    """The conversation as OpenAI's API carries it: null content beside tool calls, arguments as JSON text."""
    sent = json.loads(json.dumps(messages))
    for message in sent:
        if message.get("tool_calls"):
            message.setdefault("content", None)
            for item in message["tool_calls"]:
                item["function"]["arguments"] = json.dumps(item["function"]["arguments"])
    return sent


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("title", CONVERSATIONS)
def test_equals_transformers(name, title):
    expected = json.loads(GOLDENS.read_text(encoding="utf-8"))[name][title]
    messages, arguments = CONVERSATIONS[title]
    if expected is not None:
        assert make(template(name)).render(as_sent(messages), date=DATE, **arguments) == expected


@pytest.mark.reference
def test_goldens_are_what_transformers_says_now():
    pytest.importorskip("transformers")
    assert json.loads(GOLDENS.read_text(encoding="utf-8")) == render_with_transformers()


def test_variables_reach_the_template():
    source = (
        "{{ bos_token }}{{ enable_thinking }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"
    )
    assert make(source).render(HI, enable_thinking=False) == "<s>FalseTrueTrueTrue"
    assert make(source).render(HI, tools=[], add_generation_prompt=False, documents=[]) == "<s>TrueFalseFalse"
    assert make("{{ messages[0].content }}").render(HI, messages="other") == "hi"


def test_D02_the_templates_own_refusal_is_told():
    refusing = make(template("gemma"))
    with pytest.raises(TemplateError, match=r"refuses the conversation: System role not supported$"):
        refusing.render([{"role": "system", "content": "s"}, *HI])
    with pytest.raises(TemplateError, match="conversation roles must alternate"):
        make(template("mistral")).render([*HI, *HI])
    assert "hi" in refusing.render(HI)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ missing.attribute }}",
        "{{ 1 / 0 }}",
        "{{ 1 + 'a' }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ raise_exception('two\nlines') }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ undefined_thing | tojson }}",
    ],
)
def test_D02_any_failure_is_one_line(source):
    with pytest.raises(TemplateError) as caught:
        make(source).render(HI)
    assert isinstance(caught.value, PilotlightError)
    assert "chat template" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_D18_a_runaway_template_is_told():
    source = "{% for m in messages if m.content == 'go' %}{{ 'x' * 10 ** 9 }}{% endfor %}"
    with pytest.raises(TemplateError, match="was stopped: it repeats"):
        make(source).render([{"role": "user", "content": "go"}])


def test_D03_parts_give_the_same_prompt_as_a_string():
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]
    for name in names():
        if name == "parts":  # it has no separator of its own
            continue
        chat = make(template(name))
        joined = chat.render([{"role": "user", "content": "hi\nyou"}], date=DATE)
        assert chat.render([{"role": "user", "content": parts}], date=DATE) == joined
    chat = make(template("parts"))
    assert chat.render([{"role": "user", "content": parts}]) == chat.render([{"role": "user", "content": "hiyou"}])


@pytest.mark.parametrize("name", ["chatml", "qwen_tools", "null_content"])
def test_D05_D07_call_and_result_are_in_the_prompt(name):
    source = template(name)
    if name == "chatml":
        source = source.replace("message.content", "(message.content or message.tool_calls | tojson)")
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call('{"city": "Paris"}')]},
        {"role": "tool", "tool_call_id": "call00001", "content": "sunny"},
        {"role": "user", "content": "and?"},
    ]
    rendered = make(source).render(history, date=DATE)
    assert '"Paris"' in rendered
    assert "weather" in rendered
    assert "sunny" in rendered


@pytest.mark.parametrize("arguments", ["", "[1]", "not json"])
def test_D07_arguments_that_are_no_object_are_rendered_or_refused(arguments):
    source = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}{% endfor %}"
        "{{ m.content }}{% endfor %}"
    )
    history = [*HI, {"role": "assistant", "content": None, "tool_calls": [call(arguments)]}]
    chat = make(source)
    if arguments == "":
        assert chat.render(history) == "hiweather"
    else:
        with pytest.raises(TemplateError, match="fails on this conversation"):
            chat.render(history)


def test_D10_tool_use_serves_requests_with_tools():
    chat = ChatTemplate({"default": "plain", "tool_use": "tools", "rag": "documents"})
    assert chat.render(HI) == "plain"
    assert chat.render(HI, tools=[{"type": "function"}]) == "tools"
    assert chat.render(HI, tools=[]) == "plain"
    assert ChatTemplate({"default": "plain"}).render(HI, tools=[{"type": "function"}]) == "plain"
    with pytest.raises(TemplateError, match="none of them is called default"):
        ChatTemplate({"rag": "documents"}).render(HI)


def test_D16_continuing():
    chat = make(template("chatml"))
    answer = {"role": "assistant", "content": "Well,"}
    rendered = chat.render([*HI, answer], add_generation_prompt=False, continue_final_message=True)
    assert rendered.endswith("<|im_start|>assistant\nWell,")
    with pytest.raises(TemplateError, match="exclude each other"):
        chat.render([*HI, answer], continue_final_message=True)
    for last in (HI[0], {"role": "assistant", "content": None, "tool_calls": [call("{}")]}, answer | {"content": ""}):
        with pytest.raises(TemplateError, match="the last message is not an assistant's"):
            chat.render([*HI, last], add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(TemplateError, match="does not write the last message"):
        make("{{ messages[0].content }}").render(
            [*HI, answer], add_generation_prompt=False, continue_final_message=True
        )


def test_D16_continuing_parts():
    chat = make(template("parts"))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    for content in ("ab", parts):
        messages = [*HI, {"role": "assistant", "content": content}]
        rendered = chat.render(messages, add_generation_prompt=False, continue_final_message=True)
        assert rendered.endswith("assistant\nab")
    assert parts[1]["text"] == "b"


def test_D20_no_messages():
    with pytest.raises(TemplateError, match="messages: expected at least one"):
        make("x").render([])


def test_jinja_is_imported_at_the_first_conversation_only():
    import subprocess
    import sys

    code = (
        "import sys; from pilotlight.text.template import ChatTemplate; chat = ChatTemplate({'default': 'x'});"
        "assert 'jinja2' not in sys.modules; chat.prepare(); assert 'jinja2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
