"""LLM(device="cuda"): the engine in process, its answers next to the CPU's, and calls that are interrupted."""

from pathlib import Path
from typing import Any

import pytest

from pilotlight import LLM, SamplingParams
from pilotlight.device.cuda import driver
from pilotlight.llm import RequestOutput
from tests.models import llama_tensors, write_chain
from tests.tokenizers import byte_tokenizer

from .bench import Bench, config_of, write_snapshot
from .servers import CHAIN, TEXT

pytestmark = pytest.mark.gpu

ERROR = 0.06  # of a log-probability; 0.03 was measured
DECIDED = 2 * ERROR


@pytest.fixture(scope="module")
def chain_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("models") / "chain", CHAIN, loop=True, head_dim=64)


@pytest.fixture(scope="module")
def tiny_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of(vocab_size=byte_tokenizer().size)
    return write_snapshot(tmp_path_factory.mktemp("models"), "bfloat16", config, llama_tensors(config))


def open_llm(directory: Path, device: str) -> LLM:
    return LLM(str(directory), device=device, max_model_len=128, max_num_seqs=4, kv_cache_memory_bytes=1 << 19)


@pytest.fixture(scope="module")
def chain(shared_bench: Bench, chain_directory: Path) -> LLM:
    return open_llm(chain_directory, "cuda")


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 0.0, "max_tokens": 20} | changes))


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [answer.text for output in outputs for answer in output.outputs]


def test_prompts_with_parameters_of_their_own_are_answered_as_on_the_cpu(
    bench: Bench, chain: LLM, chain_directory: Path
) -> None:
    """More prompts than run at once; all that a request can ask for, of a model whose answers leave no doubt."""
    cases = [
        greedy(),
        greedy(max_tokens=3, logprobs=2, prompt_logprobs=1),
        greedy(stop="fgh", max_tokens=50),
        greedy(stop_token_ids=[CHAIN[4]], min_tokens=8, max_tokens=60),
        greedy(n=2, allowed_token_ids=[*CHAIN[:3]], repetition_penalty=1.1),
        greedy(logit_bias={CHAIN[5]: -100.0, CHAIN[0]: 5.0}, frequency_penalty=0.3, max_tokens=9),
        greedy(ignore_eos=True, max_tokens=None),
    ]
    prompts = [str(number) * (1 + 9 * number) for number in range(len(cases))]
    cpu = open_llm(chain_directory, "cpu")
    for one, other in zip(chain.generate(prompts, cases), cpu.generate(prompts, cases), strict=True):
        assert texts([one]) == texts([other])
        assert [answer.token_ids for answer in one.outputs] == [answer.token_ids for answer in other.outputs]
        assert [answer.finish_reason for answer in one.outputs] == [answer.finish_reason for answer in other.outputs]
        assert [answer.stop_reason for answer in one.outputs] == [answer.stop_reason for answer in other.outputs]
        for answer, expected in zip(one.outputs, other.outputs, strict=True):
            assert answer.cumulative_logprob == pytest.approx(expected.cumulative_logprob, abs=1e-4)
        assert (one.prompt_logprobs is None) == (other.prompt_logprobs is None)
    chain._engine.check_integrity()
    assert not chain._engine.has_work


def test_log_probabilities_are_the_cpus(bench: Bench, tiny_directory: Path) -> None:
    """Of prompts, and of answers as far as they are decided: random weights leave some tokens open."""
    cuda, cpu = (open_llm(tiny_directory, device) for device in ("cuda", "cpu"))
    prompts = [{"prompt_token_ids": [7 * n + m for m in range(5 + 12 * n)]} for n in range(6)]
    params = greedy(max_tokens=10, logprobs=3, prompt_logprobs=2)
    decided = 0
    for one, other in zip(cuda.generate(prompts, params), cpu.generate(prompts, params), strict=True):
        for found, expected in zip(one.prompt_logprobs or (), other.prompt_logprobs or (), strict=True):
            compare(found, expected)
        answers = zip(one.outputs[0].token_ids, other.outputs[0].token_ids, strict=True)
        for at, (token, expected_token) in enumerate(answers):
            expected = (other.outputs[0].logprobs or [])[at]
            first, second = sorted((entry.logprob for entry in expected.values()), reverse=True)[:2]
            if token != expected_token:
                assert first - second <= DECIDED
                break
            compare((one.outputs[0].logprobs or [])[at], expected)
            decided += first - second > DECIDED
    assert decided > 20


def compare(found: Any, expected: Any) -> None:
    """One position's log-probabilities. Which alternatives come last may depend on the last bits."""
    assert (found is None) == (expected is None)
    shared = (found or {}).keys() & (expected or {}).keys()
    assert bool(shared) == bool(found)
    for token in shared:
        assert found[token].logprob == pytest.approx(expected[token].logprob, abs=ERROR)


def test_seeds_repeat(bench: Bench, tiny_directory: Path) -> None:
    llm = open_llm(tiny_directory, "cuda")
    params = [SamplingParams(n=3, seed=7, max_tokens=8), SamplingParams(temperature=1.5, seed=8, max_tokens=8)]
    first, again = llm.generate(["12", "3"], params), llm.generate(["12", "3"], params)
    assert texts(first) == texts(again)
    assert len(set(texts(first))) == 4


@pytest.mark.parametrize("call", ["launch_graph", "synchronize_event"])
def test_an_interrupted_call_leaves_it_usable(
    bench: Bench, chain: LLM, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Ctrl-C with a step or two under way."""
    make, calls = getattr(driver, call), 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        made = make(*arguments)
        if calls == 8:
            raise KeyboardInterrupt
        return made

    with monkeypatch.context() as patch:
        patch.setattr(driver, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            chain.generate(["1", "22 ", "333"], greedy(frequency_penalty=0.001, max_tokens=30))
    assert not chain._engine.has_work
    assert texts(chain.generate(["1", "22 ", "333"], greedy())) == [TEXT[:20]] * 3
