"""The demo model's GGUF, and what the model's own tokenizer makes of varied texts (tests/golden/demo_tokens.json)."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
GGUF = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"  # scripts/get_demo_model puts it there
GOLDEN = ROOT / "tests" / "golden" / "demo_tokens.json"

TEXTS = (
    "",
    " ",
    "Hello world",
    "  two  spaces\n\n\tand tabs \r\n",
    "In 2024 it cost $3.14, 1,000,000 times; call 555-0199.",
    "\u00bd cup, 10\u00b2 = 100, \u0663\u0664 \u2167",
    "don't WE'LL I'm they've it's",
    "def f(x: int) -> list[int]:\n    return [x**2 for _ in range(10)]  # 3 + 4\n",
    "Gr\u00fc\u00dfe aus K\u00f6ln, na\u00efve caf\u00e9, cafe\u0301",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u65e5\u672c\u8a9e\u306e\u6587",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043a\u0430\u043a \u0434\u0435\u043b\u0430?",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0643",
    "\U0001f600\U0001f44d\U0001f3fd\u200d\U0001f469 \ud55c\uad6d\uc5b4",
    "<|im_start|>user\nWhat is 7 times 6?<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><repo_name>a/b<file_sep>x",
    "half a <|im_sta tag and <|im_end|>glued",
    "https://example.org/a?b=1&c=2#d \u2014 \u201cquoted\u201d \u2026",
    "x" * 70 + "1" * 20,
)


def make_tokens(gguf: Path = GGUF) -> list[dict[str, object]]:
    """By transformers; the pre-tokenizer, which it does not take from the file, as in the model's tokenizer.json."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return [{"text": text, "ids": tokenizer(text, add_special_tokens=False).input_ids} for text in TEXTS]
