"""SmolLM2-135M against transformers' greedy answers to ten prompts, teacher-forced."""

import json

import numpy as np
import pytest

from tests.model.demo import ANSWER_TOKENS, DECIDED, GOLDEN, PROMPTS, load_reference, teacher_forced
from tests.model.harness import Runner, load, sample_at

ANSWERS = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(demo_snapshot):
    return load(demo_snapshot, max_num_seqs=len(PROMPTS), max_model_len=512)


def decided(answer):
    return [gap > DECIDED for gap in answer["gaps"]]


def test_goldens_decide_nearly_everywhere():
    assert [answer["prompt"] for answer in ANSWERS] == list(PROMPTS)
    assert all(len(answer["answer_ids"]) == len(answer["gaps"]) == ANSWER_TOKENS for answer in ANSWERS)
    assert np.mean([decided(answer) for answer in ANSWERS]) >= 0.95


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_prefill_of_prompt_and_answer(model, answer):
    runner = Runner(model)
    prompt, expected = answer["prompt_ids"], answer["answer_ids"]
    batch = runner.batch([(runner.sequence(), prompt + expected[:-1])])
    found = model.run(sample_at(batch, range(len(prompt) - 1, len(batch.tokens)))).tokens
    assert len(found) == len(expected)
    wrong = [at for at, sure in enumerate(decided(answer)) if sure and found[at] != expected[at]]
    assert wrong == []


def test_decode_of_all_answers_together(model):
    runner = Runner(model)
    sequences = [runner.sequence() for _ in ANSWERS]
    tokens = [answer["prompt_ids"] for answer in ANSWERS]
    wrong = []
    for at in range(ANSWER_TOKENS):
        found = model.run(runner.batch(list(zip(sequences, tokens, strict=True)))).tokens
        for index, answer in enumerate(ANSWERS):
            if decided(answer)[at] and found[index] != answer["answer_ids"][at]:
                wrong.append((index, at))
        tokens = [[answer["answer_ids"][at]] for answer in ANSWERS]
    assert wrong == []


@pytest.mark.reference
def test_goldens_are_what_transformers_says_now(demo_gguf):
    pytest.importorskip("transformers")
    reference = load_reference(demo_gguf)
    for answer in ANSWERS:
        best, gaps = teacher_forced(reference, answer["prompt_ids"], answer["answer_ids"])
        assert gaps == pytest.approx(answer["gaps"], abs=1e-3)
        sure = decided(answer)
        assert np.array(best)[sure].tolist() == np.array(answer["answer_ids"])[sure].tolist()
