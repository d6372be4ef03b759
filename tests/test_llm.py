"""The engine in process: prompts in every form, text cut as the server cuts it, outputs in vLLM's shape."""

import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pilotlight import LLM, SamplingParams
from pilotlight.errors import ModelDataError, UsageError
from pilotlight.llm import RequestOutput
from pilotlight.model.model import load_model
from pilotlight.params import ParameterError
from pilotlight.text.template import TemplateError
from tests.engine.lookahead import LookaheadModel
from tests.models import CHATML, llama_config, llama_tensors, write_chain, write_checkpoint, write_tiny
from tests.tokenizers import byte_tokenizer

END = byte_tokenizer().id("<|im_end|>")
ANSWER = list(dict.fromkeys(b"The fox jumps"))  # distinct bytes
ANSWER_TEXT = bytes(ANSWER).decode()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers any prompt that ends with a digit or a special token with ANSWER_TEXT and the end token."""
    return write_chain(tmp_path_factory.mktemp("llm") / "chain", [*ANSWER, END], eos=END)


@pytest.fixture(scope="module")
def llm(directory: Path) -> LLM:
    return LLM(model=str(directory), gpu_memory_utilization=0.5, max_model_len=128)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_tiny(tmp_path_factory.mktemp("llm") / "tiny")), seed=3)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.0, "max_tokens": 50} | changes))


def test_one_text(llm: LLM) -> None:
    (output,) = llm.generate("1", greedy())
    assert (output.prompt, output.prompt_token_ids, output.finished) == ("1", [49], True)
    (answer,) = output.outputs
    assert (answer.index, answer.text, answer.token_ids) == (0, ANSWER_TEXT, [*ANSWER, END])
    assert (answer.finish_reason, answer.stop_reason) == ("stop", None)
    assert (answer.logprobs, answer.cumulative_logprob, output.prompt_logprobs) == (None, None, None)


def test_every_form_of_prompt_in_order(llm: LLM) -> None:
    outputs = llm.generate(
        ["1", {"prompt": "22"}, {"prompt_token_ids": [51]}, {"prompt_token_ids": (52, 52), "prompt": "44"}],
        greedy(max_tokens=3),
    )
    assert [output.prompt for output in outputs] == ["1", "22", None, "44"]
    assert [output.prompt_token_ids for output in outputs] == [[49], [50, 50], [51], [52, 52]]
    assert texts(outputs) == [ANSWER_TEXT[:3]] * 4
    assert texts(llm.generate({"prompt_token_ids": [51]}, greedy(max_tokens=2))) == [ANSWER_TEXT[:2]]
    assert llm.generate([]) == []


def test_parameters_for_each_prompt(llm: LLM) -> None:
    outputs = llm.generate(["1", "2"], [greedy(max_tokens=1), greedy(max_tokens=4)])
    assert texts(outputs) == [ANSWER_TEXT[:1], ANSWER_TEXT[:4]]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "length"]
    with pytest.raises(ParameterError, match="1 of them for 2 prompts"):
        llm.generate(["1", "2"], [greedy()])


@pytest.mark.parametrize("prompt", [5, [1, 2], {"text": "a"}, {"prompt": 5}, {"prompt_token_ids": "1"}, None])
def test_a_prompt_of_another_form_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(ParameterError, match=r"^prompts\[1\]: expected a string"):
        llm.generate(["1", prompt])


def test_B14_B22_H19_what_the_model_cannot_take_is_refused_before_anything_runs(llm: LLM) -> None:
    for ids, message in (
        ([], r"prompts\[1\]: it is empty"),
        ([1] * 128, r"prompts\[1\]: it has 128 tokens.*context is 128"),
        ([288], r"prompts\[1\]: 288 is not a token id of this model \(0 to 287\)"),
        ([True], r"prompts\[1\]: True is not"),
    ):
        with pytest.raises(ValueError, match=message):
            llm.generate(["1", {"prompt_token_ids": ids}])
    with pytest.raises(ValueError, match=r"logit_bias for prompts\[0\]: 9999999 is not"):
        llm.generate("1", greedy(logit_bias={9999999: 1.0}))
    with pytest.raises(ValueError, match=r"logprobs for prompts\[0\]: 21 alternatives"):
        llm.generate("1", greedy(logprobs=21))
    assert not llm._engine.has_work


def test_A05_a_stop_string_ends_the_text_and_the_sequence(llm: LLM) -> None:
    (output,) = llm.generate("1", greedy(stop=["zz", ANSWER_TEXT[3:5]]))
    answer = output.outputs[0]
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (ANSWER_TEXT[:3], "stop", ANSWER_TEXT[3:5])
    assert answer.token_ids == ANSWER[:5]
    (shown,) = llm.generate("1", greedy(stop=ANSWER_TEXT[3:5], include_stop_str_in_output=True))
    assert shown.outputs[0].text == ANSWER_TEXT[:5]
    assert not llm._engine.has_work


def test_a_stop_token_is_named(llm: LLM) -> None:
    (output,) = llm.generate("1", greedy(stop_token_ids=[ANSWER[2]]))
    answer = output.outputs[0]
    assert (answer.text, answer.stop_reason, answer.token_ids) == (ANSWER_TEXT[:2], ANSWER[2], ANSWER[:3])


def test_no_token_comes_that_is_not_allowed(llm: LLM, tiny: LLM) -> None:
    (output,) = llm.generate("1", greedy(max_tokens=4, allowed_token_ids=[*ANSWER[:2], 200]))
    assert output.outputs[0].token_ids[:2] == ANSWER[:2]
    assert set(output.outputs[0].token_ids) <= {*ANSWER[:2], 200}
    assert output.outputs[0].finish_reason == "length"
    (output,) = tiny.generate("12", SamplingParams(temperature=2.0, max_tokens=60, allowed_token_ids=[5, 7, 300]))
    assert set(output.outputs[0].token_ids) == {5, 7, 300}
    with pytest.raises(ValueError, match=r"allowed_token_ids for prompts\[0\]: 288 is not a token id"):
        llm.generate("1", greedy(allowed_token_ids=[5, 288]))


def test_special_tokens_are_hidden_or_shown(llm: LLM) -> None:
    (output,) = llm.generate("1", greedy(ignore_eos=True, skip_special_tokens=False, max_tokens=len(ANSWER) + 2))
    assert output.outputs[0].text == ANSWER_TEXT + "<|im_end|>" * 2
    (output,) = llm.generate("1", greedy(ignore_eos=True, max_tokens=len(ANSWER) + 2))
    assert output.outputs[0].text == ANSWER_TEXT


def test_max_tokens_none_runs_to_the_end_of_the_context(llm: LLM) -> None:
    (output,) = llm.generate("1" * 100, greedy(ignore_eos=True, max_tokens=None))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (28, "length")
    assert len(llm.generate("1", SamplingParams(ignore_eos=True))[0].outputs[0].token_ids) == 16


def test_logprobs(llm: LLM) -> None:
    (output,) = llm.generate("12", greedy(max_tokens=2, logprobs=2, prompt_logprobs=0))
    answer = output.outputs[0]
    assert answer.logprobs
    assert [len(entry) for entry in answer.logprobs] == [2, 2]
    first = answer.logprobs[0][ANSWER[0]]
    assert (first.rank, first.decoded_token) == (1, "T")
    assert answer.cumulative_logprob == pytest.approx(first.logprob + answer.logprobs[1][ANSWER[1]].logprob)
    assert output.prompt_logprobs
    assert output.prompt_logprobs[0] is None
    assert list(output.prompt_logprobs[1] or {}) == [50]


def test_a_sampled_token_outside_the_alternatives_is_listed_first(tiny: LLM) -> None:
    (output,) = tiny.generate("12", SamplingParams(temperature=0.7, max_tokens=60, logprobs=1))
    entries = output.outputs[0].logprobs or []
    sampled = [entry[token] for entry, token in zip(entries, output.outputs[0].token_ids, strict=True)]
    assert {len(entry) for entry in entries} == {1, 2}
    assert all((value.rank is None) == (len(entry) == 2) for entry, value in zip(entries, sampled, strict=True))


def test_C13_n_choices_of_one_prompt(tiny: LLM) -> None:
    params = SamplingParams(n=4, seed=7, max_tokens=10)
    first, again = tiny.generate("12", params), tiny.generate("12", params)
    assert [answer.index for answer in first[0].outputs] == [0, 1, 2, 3]
    assert len({tuple(answer.token_ids) for answer in first[0].outputs}) == 4
    assert first[0].outputs == again[0].outputs
    prompts = tiny.generate(["12"] * 4, SamplingParams(seed=7, max_tokens=10))
    assert len({tuple(output.outputs[0].token_ids) for output in prompts}) == 4


def test_the_logprobs_of_a_prompt_are_made_once_for_all_its_choices(tiny: LLM) -> None:
    prompt = "n choices of one prompt, which has three pages and a bit more"
    before = tiny._engine.stats
    (output,) = tiny.generate(prompt, greedy(n=3, max_tokens=2, prompt_logprobs=1))
    after = tiny._engine.stats
    assert output.prompt_logprobs
    assert [entry is None for entry in output.prompt_logprobs] == [True] + [False] * (len(prompt) - 1)
    assert after.prefix_hit_tokens - before.prefix_hit_tokens == 2 * 48
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 1


def test_the_models_seed_makes_unseeded_calls_repeatable(tiny: LLM) -> None:
    params = SamplingParams(max_tokens=10)
    assert tiny.generate("12", params)[0].outputs == tiny.generate("12", params)[0].outputs


def test_reused_prompt_tokens_are_counted(tiny: LLM) -> None:
    prompt = "a prompt of its own, longer than two pages"
    assert [tiny.generate(prompt, greedy(max_tokens=2))[0].num_cached_tokens for _ in range(2)] == [0, 32]


def test_A10_a_sequence_without_a_token_is_an_error_of_its_own(llm: LLM) -> None:
    everything = dict.fromkeys(range(288), -100.0)
    assert llm.generate("1", greedy(max_tokens=2, logit_bias=everything))[0].outputs[0].finish_reason == "length"
    banned = greedy(min_tokens=1, max_tokens=2, stop_token_ids=[5], allowed_token_ids=[5])
    outputs = llm.generate(["1", "2"], [banned, greedy(max_tokens=2)])
    assert outputs[0].outputs[0].finish_reason == "error"
    assert "no token can be chosen" in str(outputs[0].outputs[0].stop_reason)
    assert texts(outputs)[1] == ANSWER_TEXT[:2]


def test_chat(llm: LLM) -> None:
    one = [{"role": "user", "content": "Hi 1"}]
    (output,) = llm.chat(one, greedy())
    assert output.prompt == "<|im_start|>user\nHi 1<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids[0] == byte_tokenizer().id("<|im_start|>")
    assert output.outputs[0].finish_reason == "stop"
    several = llm.chat([one, [{"role": "user", "content": "Hi 2"}]], greedy(max_tokens=1))
    assert [output.prompt[17:21] for output in several if output.prompt] == ["Hi 1", "Hi 2"]
    (bare,) = llm.chat(one, greedy(max_tokens=1), add_generation_prompt=False)
    assert bare.prompt == "<|im_start|>user\nHi 1<|im_end|>\n"
    (continued,) = llm.chat(
        [*one, {"role": "assistant", "content": "Well, 1"}],
        greedy(),
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert continued.prompt == "<|im_start|>user\nHi 1<|im_end|>\n<|im_start|>assistant\nWell, 1"
    assert continued.outputs[0].text == ANSWER_TEXT


@pytest.mark.parametrize("params", [{"temperature": 0}, [{"temperature": 0}], [None], "greedy", 1])
def test_parameters_of_another_type_are_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(ParameterError, match="sampling_params: expected a SamplingParams"):
        llm.generate("1", params)


@pytest.mark.parametrize("messages", [{"role": "user", "content": "x"}, "hello", None, 5])
def test_messages_of_another_type_are_refused(llm: LLM, messages: Any) -> None:
    with pytest.raises(ParameterError, match="messages: expected a list"):
        llm.chat(messages)


def test_template_variables_cannot_replace_arguments(llm: LLM) -> None:
    with pytest.raises(ParameterError, match="chat_template_kwargs: 'tools'"):
        llm.chat([{"role": "user", "content": "x"}], chat_template_kwargs={"tools": []})


def test_D20_D21_chat_that_cannot_be(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match="at least one message"):
        llm.chat([], greedy())
    path = write_chain(tmp_path / "base", [1, 2], chat_template=None)
    base = LLM(str(path))
    with pytest.raises(UsageError, match="no chat template"):
        base.chat([{"role": "user", "content": "Hi"}])
    assert len(base.generate("1")[0].outputs[0].token_ids) == 16
    (tmp_path / "chatml.jinja").write_text(CHATML)
    given = LLM(str(path), chat_template=str(tmp_path / "chatml.jinja"))
    assert given.chat([{"role": "user", "content": "Hi"}], greedy(max_tokens=1))[0].finished


def test_defaults_of_the_model_hold_where_no_parameters_are_given(tmp_path: Path) -> None:
    generation = {"temperature": 0.0, "max_new_tokens": 5, "eos_token_id": [END]}
    llm = LLM(str(write_chain(tmp_path / "a", [*ANSWER, END], generation=generation)))
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=5)
    assert texts(llm.generate("1")) == [ANSWER_TEXT[:5]]
    with pytest.raises(ModelDataError, match=r"generation_config\.json .*temperature"):
        LLM(str(write_chain(tmp_path / "b", [1, 2], generation={"temperature": -1})))


def test_H09_every_eos_of_the_model_ends_an_answer(tmp_path: Path) -> None:
    generation = {"eos_token_id": [5, ANSWER[4]]}
    llm = LLM(str(write_chain(tmp_path / "chain", [*ANSWER, END], eos=5, generation=generation)))
    (output,) = llm.generate("1", greedy())
    assert (output.outputs[0].text, output.outputs[0].finish_reason) == (ANSWER_TEXT[:4], "stop")


def test_an_unknown_setting_is_refused_with_the_nearest(directory: Path) -> None:
    with pytest.raises(UsageError, match="unknown setting 'max_model_length'; did you mean max_model_len"):
        LLM(str(directory), max_model_length=5)
    with pytest.raises(UsageError, match="tensor-parallel-size"):
        LLM(str(directory), tensor_parallel_size=2)


def test_an_interrupted_call_leaves_the_engine_empty(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    step = llm._engine.step

    def interrupted() -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm._engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["1", "2"], greedy())
    monkeypatch.undo()
    llm._engine.check_integrity()
    assert not llm._engine.has_work
    assert texts(llm.generate("1", greedy())) == [ANSWER_TEXT]


def test_an_interrupt_in_the_middle_of_the_books_leaves_an_engine_that_works(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C can come anywhere: here after pages were taken and before they are a sequence's."""
    pool = llm._engine.scheduler.pool
    take = pool.take

    def interrupted(count: int) -> list[int]:
        take(count)
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["1", "2"], greedy())
    llm._engine.check_integrity()
    assert texts(llm.generate("1", greedy())) == [ANSWER_TEXT]


def test_calls_from_several_threads_take_turns(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [f"thread {number}" for number in range(8)]
    alone = [tiny.generate(prompt, greedy())[0].outputs for prompt in prompts]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(prompts)) as pool:
            together = list(pool.map(lambda prompt: tiny.generate(prompt, greedy())[0].outputs, prompts))
    finally:
        sys.setswitchinterval(interval)
    assert together == alone
    tiny._engine.check_integrity()


@pytest.fixture
def ahead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """An LLM on a device that looks ahead."""
    monkeypatch.setattr("pilotlight.llm.load_model", lambda *arguments: LookaheadModel(load_model(*arguments)))
    return LLM(str(directory), max_model_len=128)


def test_with_lookahead_answers_are_the_same_and_no_step_is_left(llm: LLM, ahead: LLM) -> None:
    cases = [
        greedy(),
        greedy(max_tokens=3, logprobs=1, prompt_logprobs=1),
        greedy(stop=ANSWER_TEXT[3:5]),
        greedy(stop_token_ids=[ANSWER[2]]),
        greedy(n=2, repetition_penalty=1.2, allowed_token_ids=[*ANSWER, END]),
    ]
    prompts = [str(number) * (number + 1) for number in range(len(cases))]
    for one, other in zip(llm.generate(prompts, cases), ahead.generate(prompts, cases), strict=True):
        assert one.outputs == other.outputs
        assert one.prompt_logprobs == other.prompt_logprobs
    assert not ahead._engine.has_work
    ahead._engine.check_integrity()


def test_an_interrupt_with_a_step_under_way_leaves_an_engine_that_works(
    ahead: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for that step's tokens any more."""
    steps = 0
    step = ahead._engine.step

    def interrupted() -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(ahead._engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ahead.generate(["1", "2"], greedy(frequency_penalty=0.5))
    assert not ahead._engine.has_work
    assert texts(ahead.generate(["1", "2"], greedy())) == [ANSWER_TEXT] * 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_on_a_terminal_only(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, file = Terminal(), io.StringIO()
    monkeypatch.setattr("sys.stderr", terminal)
    llm.generate(["1", "2"], greedy())
    shown = terminal.getvalue()
    assert shown.split("\r")[-1].startswith("2/2 answers |" + "\u2588" * 30 + "| ")
    assert shown.endswith("tokens/s \n")
    llm.generate("1", greedy(), use_tqdm=False)
    assert terminal.getvalue() == shown
    monkeypatch.setattr("sys.stderr", file)
    llm.generate("1", greedy())
    assert file.getvalue() == ""


def test_many_more_prompts_than_run_at_once(tmp_path: Path) -> None:
    config = llama_config()
    llm = LLM(str(write_checkpoint(tmp_path / "tiny", config, llama_tensors(config))), max_num_seqs=4)
    prompts = [f"{number} " * 5 for number in range(40)]
    together = llm.generate(prompts, greedy(max_tokens=6))
    alone = [llm.generate(prompt, greedy(max_tokens=6))[0] for prompt in prompts]
    assert texts(together) == texts(alone)
    llm._engine.check_integrity()
