"""A small BPE tokenizer of every kind that models come with, trained here by the library on a few lines."""

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre

# Names of special tokens, and texts that pre-tokenisers and normalisers treat in their own ways.
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SNIPPETS = (
    "The quick brown fox's jumping over the lazy dog; don't we'll I'M ",
    "def forward(self, hidden_states: torch.Tensor) -> tuple[int, ...]:\n    return x**2 + 1_000\n\n",
    "naïve café e\u0301a\u0308 ｆｕｌｌ ﬁne \u1e9b\u0323 ",
    "你好,世界。今天天气很好,我们去公园吧 ",
    "안녕하세요 세계 \u1112\u1161\u11ab ",
    "Привет мир नमस्ते दुनिया مرحبا ",
    "😀👩\u200d👩\u200d👧🇫🇷👍🏽❤️",
    "    \t\t  \r\n\r\n \u00a0\u3000 ",
    "1234567890.5e-7 12 ",
    "\ufffd\ufffd\u0000\ufeff\u200b\uffff",
    "▁▁a▁b <0x0A><0xE4> <unk> <tool> <tool>x foo bar",
    "<|im_start|> <|im_end|>  <|endoftext|>\n",
    "aaaaaaaaaaaaaaaabbbbbbbbababababab",
)
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _corpus() -> list[str]:
    source = Path(__file__).with_name("test_template.py").read_text(encoding="utf-8").splitlines(keepends=True)
    return [*source, *SNIPPETS * 4]


def _byte_level(
    pre_tokenizer: pre.PreTokenizer, *, normalizer: normalizers.Normalizer | None = None, size: int = 700
) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def _gpt2() -> Tokenizer:
    tokenizer = _byte_level(pre.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def _qwen() -> Tokenizer:
    """NFC, and added tokens with every flag."""
    steps = [pre.Split(Regex(_GPT4), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer = _byte_level(pre.Sequence(steps), normalizer=normalizers.NFC())
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.add_tokens(
        [
            AddedToken("<tool>", normalized=False, lstrip=True),
            AddedToken("</tool>", normalized=False, rstrip=True),
            AddedToken("foo bar", normalized=True),
            AddedToken("word", normalized=False, single_word=True),
            AddedToken("e\u0301e", normalized=True),  # matched, and spelled, as NFC has it
            AddedToken("<tool>x", normalized=False),
        ]
    )
    return tokenizer


def _llama3() -> Tokenizer:
    """`ignore_merges`, with a token that its merges do not make, and BOS before every text."""
    steps = [pre.Split(Regex(_GPT4), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer = _byte_level(pre.Sequence(steps))
    vocabulary, merges = _parts(tokenizer)
    for word in ("ĠTensor", "quick", "Ġlazy!"):
        vocabulary.setdefault(word, len(vocabulary))
    tokenizer.model = models.BPE(vocabulary, merges, ignore_merges=True)
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|im_start|> $A <|im_end|>",
                special_tokens=[(name, tokenizer.token_to_id(name)) for name in SPECIALS[1:]],
            ),
        ]
    )
    return tokenizer


def _smollm() -> Tokenizer:
    """Some bytes have no token: what they stand for is left out of the ids."""
    tokenizer = _byte_level(pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]))
    vocabulary, merges = _parts(tokenizer)
    dropped = {"á", "1", "ë", "z"}
    kept = [name for name in vocabulary if not dropped & set(name)]
    tokenizer.model = models.BPE(
        {name: token for token, name in enumerate(kept)},
        [(left, right) for left, right in merges if not dropped & set(left + right)],
    )
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def _pieces(tokenizer: Tokenizer) -> Tokenizer:
    """Gives it a model of pieces with byte fallback, as SentencePiece's are converted: no piece goes over a space."""
    split = Tokenizer(models.BPE())
    split.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=True)
    trainer = trainers.BpeTrainer(vocab_size=700, limit_alphabet=120, show_progress=False)
    split.train_from_iterator(_corpus(), trainer)
    vocabulary, merges = _parts(split)
    names = ["<unk>", "<s>", "</s>", *_BYTES, *(name for name in vocabulary if name not in ("<unk>", "<s>", "</s>"))]
    tokenizer.model = models.BPE(
        {name: token for token, name in enumerate(names)},
        merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _llama2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = _pieces(tokenizer)
    # As in older conversions: matched in the normalised text, and spelled with the space that it gets there.
    tokenizer.add_tokens([AddedToken("<tool>", normalized=True), AddedToken("foo bar", normalized=True)])
    return tokenizer


def _gemma() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = _pieces(tokenizer)
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("\n\n", "<tool>", "▁▁", "aaaa")])
    return tokenizer


def _mistral() -> Tokenizer:
    """As `_llama2`, by the newer pre-tokeniser."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _pieces(tokenizer)


def _parts(tokenizer: Tokenizer) -> tuple[dict[str, int], list[tuple[str, str]]]:
    model = json.loads(tokenizer.to_str())["model"]
    return dict(model["vocab"]), [tuple(merge) for merge in model["merges"]]


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": _gpt2,
    "qwen": _qwen,
    "llama3": _llama3,
    "smollm": _smollm,
    "llama2": _llama2,
    "gemma": _gemma,
    "mistral": _mistral,
}


@cache
def trained(kind: str) -> str:
    """The tokenizer.json of a kind."""
    return KINDS[kind]().to_str()


def mixed_text(characters: int, seed: int = 1) -> str:
    """Code, prose of many scripts, emoji, long whitespace, special tokens, UTF-8 that was broken and replaced."""
    draw = random.Random(seed)
    source = "".join(file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("test_*.py")))
    kinds: list[Callable[[], str]] = [
        lambda: source[(start := draw.randrange(len(source))) : start + draw.randrange(600)],
        lambda: source[(start := draw.randrange(len(source))) : start + draw.randrange(600)],
        lambda: "".join(draw.choices(SNIPPETS, k=draw.randrange(4))),
        lambda: "".join(chr(draw.randrange(0xAC00, 0xD7A4)) for _ in range(draw.randrange(60))),
        lambda: "".join(chr(draw.randrange(0x4E00, 0x9FA5)) for _ in range(draw.randrange(60))),
        lambda: " " * draw.randrange(300) + "\n" * draw.randrange(9),
        lambda: draw.randbytes(draw.randrange(60)).decode(errors="replace"),
        lambda: draw.choice((*SPECIALS, "<s>", "<bos>", "<|eot_id|>")) * draw.randrange(1, 3),
    ]
    parts: list[str] = []
    length = 0
    while length < characters:
        parts.append(draw.choice(kinds)())
        length += len(parts[-1])
    return "".join(parts)[:characters]
