import json

import pytest

from pilotlight.errors import ModelDataError, UsageError
from pilotlight.text.assets import load_text
from pilotlight.text.template import TemplateError
from tests.tokenizers import byte_tokenizer, metaspace_tokenizer

HI = [{"role": "user", "content": "hi"}]
END, TEXT_END = 258, 256  # <|im_end|>, <|endoftext|> of the byte vocabulary


@pytest.fixture
def directory(tmp_path):
    """A tokenizer.json alone."""
    byte_tokenizer().tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def put(directory, name, value):
    (directory / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_H20_a_tokenizer_json_alone(directory):
    text = load_text(directory)
    assert text.tokenizer.encode("hi") == [104, 105]
    assert text.tokenizer.special_ids == {256, 257, 258}
    assert (text.tokenizer.bos_token, text.tokenizer.eos_token, text.tokenizer.eos_token_id) == (None, None, None)
    assert (text.template, text.eos_token_ids, text.generation) == (None, (), {})


def test_H20_a_missing_tokenizer_is_named(tmp_path):
    with pytest.raises(ModelDataError, match=r"tokenizer\.json: is missing; a model needs it"):
        load_text(tmp_path)
    put(tmp_path, "tokenizer.model", "x")
    with pytest.raises(
        ModelDataError, match=r"tokenizer\.json: is missing; tokenizer\.model is not read.*save_pretrained"
    ):
        load_text(tmp_path)


def test_special_tokens_of_tokenizer_config(directory):
    put(
        directory,
        "tokenizer_config.json",
        {
            "bos_token": {"content": "<|im_start|>", "special": True},
            "eos_token": "<|im_end|>",
            "pad_token": None,
            "add_bos_token": True,
            "model_max_length": 8192,
        },
    )
    tokenizer = load_text(directory).tokenizer
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (257, END)


def test_a_whole_surrogate_pair_in_json_is_a_character(directory):
    put(directory, "tokenizer_config.json", r'{"x_token": "\ud83d\ude00"}')
    assert load_text(directory).tokenizer.special_tokens["x_token"] == "\U0001f600"


def test_special_tokens_of_special_tokens_map(directory):
    put(directory, "special_tokens_map.json", {"eos_token": {"content": "<|im_end|>"}, "bos_token": "<|im_start|>"})
    assert load_text(directory).eos_token_ids == (END,)
    # transformers reads the older file only where the newer one has no list of added tokens.
    put(directory, "tokenizer_config.json", {"added_tokens_decoder": {}, "eos_token": "<|endoftext|>"})
    assert load_text(directory).eos_token_ids == (TEXT_END,)


def test_H20_ids_in_config_name_the_tokens(directory):
    put(directory, "config.json", {"bos_token_id": 257, "eos_token_id": [END, TEXT_END]})
    put(directory, "chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    text = load_text(directory)
    assert text.tokenizer.bos_token == "<|im_start|>"
    assert text.template.render(HI) == "<|im_start|>hi<|im_end|>"


@pytest.mark.parametrize(
    ("generation", "config", "named", "expected"),
    [
        ({"eos_token_id": [5, 7]}, {"eos_token_id": 5}, None, (5, 7)),
        ({"eos_token_id": 7}, {"eos_token_id": 5}, None, (7, 5)),
        (None, {"eos_token_id": [5, 7]}, None, (5, 7)),
        (None, {"eos_token_id": None}, None, ()),
        ({}, {"eos_token_id": TEXT_END}, "<|im_end|>", (TEXT_END, END)),
        ({"eos_token_id": END}, {"eos_token_id": END}, "<|im_end|>", (END,)),
    ],
)
def test_H09_E12_end_tokens_of_all_three_files(directory, generation, config, named, expected):
    put(directory, "config.json", config)
    if generation is not None:
        put(directory, "generation_config.json", generation)
    if named is not None:
        put(directory, "tokenizer_config.json", {"eos_token": named})
    assert load_text(directory).eos_token_ids == expected


def test_end_tokens_of_all_files_together_are_bounded(directory):
    put(directory, "config.json", {"eos_token_id": [5, *range(100, 132)]})
    put(directory, "generation_config.json", {"eos_token_id": [5, *range(200, 231)] * 9})
    assert len(load_text(directory).eos_token_ids) == 64
    put(directory, "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    with pytest.raises(ModelDataError, match=r"name 65 end tokens, expected at most 64$"):
        load_text(directory)


def test_generation_defaults_are_given_as_they_stand(directory):
    put(directory, "generation_config.json", {"temperature": 0.6, "top_p": 0.9, "do_sample": True})
    assert load_text(directory).generation == {"temperature": 0.6, "top_p": 0.9, "do_sample": True}


def test_D10_templates_in_their_order(directory, tmp_path_factory):
    def rendered(**arguments):
        return load_text(directory).template.render(HI, **arguments)

    put(directory, "tokenizer_config.json", {"chat_template": "config"})
    assert rendered() == "config"
    named = [{"name": "default", "template": "first"}, {"name": "tool_use", "template": "second"}]
    put(directory, "tokenizer_config.json", {"chat_template": named})
    assert rendered() == "first"
    assert rendered(tools=[{}]) == "second"
    put(directory, "chat_template.json", {"chat_template": "json"})
    assert rendered() == "json"
    put(directory, "chat_template.jinja", "file {{ messages[0].content }} ☃")
    assert rendered() == "file hi ☃"
    (directory / "additional_chat_templates").mkdir()
    put(directory / "additional_chat_templates", "tool_use.jinja", "file for tools")
    assert rendered() == "file hi ☃"
    assert rendered(tools=[{}]) == "file for tools"
    given = tmp_path_factory.mktemp("given") / "mine.jinja"
    given.write_text("given")
    assert load_text(directory, str(given)).template.render(HI, tools=[{}]) == "given"


@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_D10_a_template_file_alone(directory, name):
    put(directory, name, "alone" if name.endswith("jinja") else {"chat_template": "alone"})
    assert load_text(directory).template.render(HI) == "alone"


def test_D21_no_template(directory):
    put(directory, "tokenizer_config.json", {"chat_template": None})
    assert load_text(directory).template is None


def test_D02_a_template_with_a_mistake_leaves_the_rest_usable(directory):
    put(directory, "chat_template.jinja", "a\n{% for %}")
    text = load_text(directory)
    with pytest.raises(TemplateError, match="mistake in line 2"):
        text.template.render(HI)
    assert text.tokenizer.encode("a") == [97]


def test_a_chat_template_flag_that_is_a_template(directory):
    """As CUSTOM_CHAT_TEMPLATE of RunPod's vLLM worker is, most often."""
    put(directory, "chat_template.jinja", "the model's")
    assert load_text(directory, "{{ messages[0].content }}!").template.render(HI) == "hi!"


def test_a_chat_template_flag_that_names_no_file_of_text(directory, tmp_path):
    with pytest.raises(
        UsageError, match=r"^--chat-template nowhere\.jinja: cannot be read: No such file or directory$"
    ):
        load_text(directory, "nowhere.jinja")
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(UsageError, match=r"^--chat-template \S+latin: is not UTF-8 \(byte 3\)$"):
        load_text(directory, str(tmp_path / "latin"))


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("config.json", "{", "config.json: is not JSON"),
        ("config.json", "[]", "config.json: is not a JSON object"),
        ("config.json", {"eos_token_id": "5"}, 'config.json: eos_token_id is "5", expected a token id'),
        ("config.json", {"eos_token_id": [True]}, "eos_token_id is .true., expected"),
        ("config.json", {"bos_token_id": -1}, "bos_token_id is -1, expected"),
        ("generation_config.json", {"eos_token_id": [*range(5000)]}, "name 5000 end tokens, expected at most 64"),
        ("generation_config.json", "", "generation_config.json: is not JSON"),
        ("generation_config.json", {"eos_token_id": 1.5}, "generation_config.json: eos_token_id is 1.5"),
        ("tokenizer_config.json", "[" * 100_000, "tokenizer_config.json: is not JSON"),
        ("tokenizer_config.json", {"chat_template": 3}, "tokenizer_config.json: chat_template is neither"),
        ("tokenizer_config.json", {"chat_template": [{"name": "default"}]}, "chat_template is neither"),
        ("chat_template.json", {"chat_template": ["x"]}, "chat_template.json: chat_template is neither"),
        ("special_tokens_map.json", "nul", "special_tokens_map.json: is not JSON"),
        ("special_tokens_map.json", {"eos_token": "\ud800"}, "special_tokens_map.json: has half of a surrogate pair"),
        ("tokenizer_config.json", {"bos_token": "\udfff"}, "tokenizer_config.json: has half of a surrogate pair"),
        ("chat_template.json", {"chat_template": "\udc00"}, "chat_template.json: has half of a surrogate pair"),
        ("tokenizer.json", "{}", "tokenizer.json: is not a tokenizer.json"),
    ],
)
def test_a_bad_file_is_named(directory, name, content, match):
    put(directory, name, content)
    with pytest.raises(ModelDataError, match=match) as caught:
        load_text(directory)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_utf8(directory):
    (directory / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(ModelDataError, match=r"chat_template\.jinja: is not UTF-8 \(byte 2\)"):
        load_text(directory)


def test_a_metaspace_directory(tmp_path):
    vocabulary = metaspace_tokenizer(["\u2581Hello"])
    vocabulary.tokenizer.save(str(tmp_path / "tokenizer.json"))
    put(tmp_path, "config.json", {"bos_token_id": 1, "eos_token_id": 2})
    text = load_text(tmp_path)
    assert (text.tokenizer.bos_token, text.tokenizer.eos_token) == ("<s>", "</s>")
    assert text.tokenizer.decode([1, vocabulary.id("\u2581Hello"), 2]) == "Hello"


def test_the_demo_models_text(demo_snapshot):
    text = load_text(demo_snapshot)
    prompt = text.template.render([{"role": "user", "content": "What is the capital of France?"}])
    assert prompt.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    ids = text.tokenizer.encode(prompt, add_special_tokens=False)
    assert ids.count(text.tokenizer.token_id("<|im_start|>")) == 3  # the template adds a system message
    assert text.tokenizer.token_id("<|im_end|>") in text.eos_token_ids
