"""Ten prompts for the demo model, and what transformers answers greedily in fp32 (tests/golden/demo.json)."""

from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "demo.json"
ANSWER_TOKENS = 48
DECIDED = 0.005  # where the two best logits are closer than that, either is right

PROMPTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a lighthouse keeper who",
    "def fibonacci(n):\n    ",
    "La capitale de la France est",
    "Der Zug nach Berlin fährt um",
    "El perro y el gato viven en una casa",
    "Il était une fois, dans un petit village,",
    "日本の首都は",
    "Столица России -",
)


def make_answers(gguf: Path) -> list[dict[str, Any]]:
    """For each prompt its ids, the greedy answer's ids, and at each the gap between the two best logits."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = load_reference(gguf)
    answers = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer(prompt, add_special_tokens=False).input_ids
        answer_ids = greedy(model, prompt_ids)
        _, gaps = teacher_forced(model, prompt_ids, answer_ids)
        answers.append({"prompt": prompt, "prompt_ids": prompt_ids, "answer_ids": answer_ids, "gaps": gaps})
    return answers


def load_reference(gguf: Path) -> Any:
    """The model as transformers dequantizes it, in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()


def greedy(model: Any, prompt_ids: list[int]) -> list[int]:
    """ANSWER_TOKENS tokens, past an EOS too."""
    import torch

    answer: list[int] = []
    with torch.inference_mode():
        step = model(torch.tensor([prompt_ids]), use_cache=True)
        while len(answer) < ANSWER_TOKENS:
            answer.append(int(step.logits[0, -1].argmax()))
            step = model(torch.tensor([answer[-1:]]), past_key_values=step.past_key_values, use_cache=True)
    return answer


def teacher_forced(model: Any, prompt_ids: list[int], answer_ids: list[int]) -> tuple[list[int], list[float]]:
    """Where each token of the answer is due: the best token, and how far its logit is above the second."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt_ids + answer_ids[:-1]]), use_cache=False).logits[0, len(prompt_ids) - 1 :]
    best = logits.topk(2)
    gaps = (best.values[:, 0] - best.values[:, 1]).tolist()
    return best.indices[:, 0].tolist(), [round(gap, 4) for gap in gaps]
