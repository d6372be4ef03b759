"""Step 8: what a real model answers, through the server's own `Model`, fed with the reference's answer.

The demo model has transformers' answers in fp32, with the gap between the two best logits at each; of another model
the CPU device says them here; where there is none, a chain of tokens is its own reference. Where the gap is wider
than what bfloat16 may move logits by, the token must be theirs.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.model.demo import GOLDEN
from tests.model.harness import Runner, load
from tests.models import write_chain

from ..job import ROOT, Failed, Job

_DEMO = ROOT / "models" / "smollm2-135m-instruct"
# Between the two best logits. Of the demo model's, whose range is 40, bfloat16 moves any by 0.015 of that in a decode
# step (tests/device/cuda/test_engine.py), and the two best against each other by far less.
_DECIDED = 1.0
_CHAIN = tuple(range(97, 123))


def run(job: Job) -> None:
    directory, cases = _cases(job)
    start = time.perf_counter()
    model = load(directory, device="cuda", max_num_seqs=16, max_model_len=256)
    job.put(model=directory.name, dtype=model.device.dtype, load_s=round(time.perf_counter() - start, 3))
    runner = Runner(model)
    contexts = [runner.sequence() for _ in cases]
    length = min(len(case["answer_ids"]) for case in cases)
    chosen: list[list[int]] = [[] for _ in cases]
    steps = []
    for at in range(length):
        fed = [case["prompt_ids"] if at == 0 else [case["answer_ids"][at - 1]] for case in cases]
        begun = time.perf_counter()
        sampled = model.run(runner.batch(list(zip(contexts, fed, strict=True))))
        steps.append(time.perf_counter() - begun)
        for row, token in zip(chosen, sampled.tokens, strict=True):
            row.append(token)
    job.put(**_compare(cases, chosen, length), decode_step_ms=round(float(np.median(steps[1:])) * 1e3, 3))
    if wrong := job.figures["wrong"]:
        raise Failed(f"{len(wrong)} tokens of {job.figures['decided']} that leave no doubt differ: {wrong[0]}")


def _compare(cases: list[dict[str, Any]], chosen: list[list[int]], length: int) -> dict[str, Any]:
    same, decided, wrong = 0, 0, []
    for number, (case, tokens) in enumerate(zip(cases, chosen, strict=True)):
        for at in range(length):
            expected, gap = case["answer_ids"][at], case["gaps"][at]
            same += tokens[at] == expected
            if gap > _DECIDED:
                decided += 1
                if tokens[at] != expected:
                    wrong.append({"case": number, "at": at, "token": tokens[at], "expected": expected, "gap": gap})
    return {"tokens": len(cases) * length, "same": same, "decided": decided, "wrong": wrong, "answers": chosen}


def _cases(job: Job) -> tuple[Path, list[dict[str, Any]]]:
    """A model, and of each case prompt_ids, answer_ids and gaps."""
    if job.soft or job.model is None:
        job.note = "" if job.soft else "the demo model is not there (scripts/demo gets it): a model of our making"
        directory = write_chain(Path(job.scratch) / "chain", _CHAIN, loop=True, head_dim=64)
        answer = [*_CHAIN, *_CHAIN][: 6 if job.soft else 48]
        gaps = [_DECIDED + 1] * len(answer)
        return directory, [{"prompt_ids": [32 + n, 40], "answer_ids": answer, "gaps": gaps} for n in range(3)]
    directory = Path(job.model)
    if directory.resolve() == _DEMO.resolve():
        return directory, json.loads(GOLDEN.read_bytes())
    return directory, _cases_of_the_cpu(directory)


def _cases_of_the_cpu(directory: Path, prompts: int = 2, tokens: int = 8) -> list[dict[str, Any]]:
    """Greedy answers of the CPU device to prompts of random ids."""
    runner = Runner(load(directory, device="cpu", max_num_seqs=2, max_model_len=64))
    random = np.random.default_rng(0).integers(16, runner.model.spec.vocab_size, (prompts, 12))
    cases = []
    for prompt in random.tolist():
        context, fed = runner.sequence(), prompt
        answer, gaps = [], []
        for _ in range(tokens):
            (logits,) = runner.logits([(context, fed)])
            best, second = np.sort(logits)[:-3:-1].tolist()
            fed = [int(logits.argmax())]
            answer.append(fed[0])
            gaps.append(best - second)
        cases.append({"prompt_ids": prompt, "answer_ids": answer, "gaps": gaps})
    return cases
