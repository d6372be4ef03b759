"""Small vocabularies that tests serve: byte-level without merges, and sentencepiece-style with byte fallback."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from tokenizers.pre_tokenizers import ByteLevel

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@dataclass(frozen=True)
class Vocabulary:
    tokenizer: Tokenizer

    @property
    def size(self) -> int:
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def id(self, token: str) -> int:
        """The id of a token by its internal spelling ("\u2581Hello", "<0xE4>", "<|im_end|>")."""
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise KeyError(token)
        return found

    def bytes(self, text: str | bytes) -> list[int]:
        """The ids of single bytes, one a byte."""
        raw = text.encode() if isinstance(text, str) else text
        if "<0x00>" in self.tokenizer.get_vocab():
            return [self.id(f"<0x{byte:02X}>") for byte in raw]
        return [self.id(_BYTE_TO_LETTER[byte]) for byte in raw]


def byte_tokenizer(pieces: Sequence[str] = (), specials: Sequence[str] = SPECIALS) -> Vocabulary:
    """BYTE: 256 byte tokens, then `pieces` as whole tokens (never produced by encoding), then the specials.

    Every non-ASCII character is several tokens. `pieces` are given as plain text.
    """
    vocabulary = {_BYTE_TO_LETTER[byte]: byte for byte in range(256)}
    for piece in pieces:
        vocabulary["".join(_BYTE_TO_LETTER[byte] for byte in piece.encode())] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return Vocabulary(tokenizer)


def metaspace_tokenizer(pieces: Sequence[str], specials: Sequence[str] = ("<unk>", "<s>", "</s>")) -> Vocabulary:
    """SPM: specials, 256 byte-fallback tokens, then pieces ("\u2581Hello"), as Llama 2's tokenizer.json is made."""
    vocabulary = {token: index for index, token in enumerate(specials)}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for piece in pieces:
        vocabulary[piece] = len(vocabulary)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return Vocabulary(tokenizer)


def _byte_letters() -> dict[int, str]:
    """GPT-2's byte alphabet: printable latin-1 stands for itself, the rest is shifted past U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {byte: chr(byte) for byte in printable}
    shifted = (byte for byte in range(256) if byte not in letters)
    return letters | {byte: chr(256 + index) for index, byte in enumerate(shifted)}


_BYTE_TO_LETTER = _byte_letters()
