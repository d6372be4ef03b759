"""The line between the processes: every message survives it, however its bytes arrive."""

import struct
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotlight import messages
from pilotlight.messages import (
    Abort,
    Fatal,
    FrameReader,
    Output,
    Ready,
    Sampling,
    Shutdown,
    Span,
    Spans,
    Start,
    Stats,
    StepDone,
    Submit,
    TokenLogprob,
    decode_to_engine,
    decode_to_front,
    encode,
)
from pilotlight.settings import Settings

SAMPLING = Sampling(
    max_tokens=5,
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    presence_penalty=-1.5,
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    logit_bias=((3, -100.0), (4, 2.5)),
    min_tokens=2,
    stop_token_ids=(7, 8),
    eos_token_ids=(2,),
    ignore_eos=True,
    logprobs=0,
    prompt_logprobs=1,
    seed=2**64 - 1,
)
OUTPUT = Output(
    id=2**40,
    tokens=[1, 2],
    finish="stop",
    stop_token=2,
    logprobs=[TokenLogprob(1, -0.5, ((1, -0.5), (9, -1.25))), TokenLogprob(2, float("-inf"))],
    prompt_logprobs=[None, TokenLogprob(5, -3.0)],
    cached_tokens=16,
    error="no",
)
TO_ENGINE = [
    Start(Settings(model="m", served_model_name=("a", "b"), seed=2**63 - 1, api_key="k", allowed_origins=("*",))),
    Submit(id=1, prompt=[], sampling=Sampling(max_tokens=1)),
    Submit(id=2, prompt=[0, 2**31 - 1], sampling=SAMPLING, prompt_index=3, choice_index=4, priority=-1),
    Abort([1, 2]),
    Shutdown(),
]
TO_FRONT = [
    Ready(256, 320, 16, 16, "cpu", "float32", [Span("engine", "weights", 1.5, 2.5, 10**12)]),
    Spans([Span("engine", "python", 1.5, 2.5), Span("engine", "weights", 2.5, None, 10**12, "reader", "python")]),
    StepDone([], Stats()),
    StepDone([OUTPUT, Output(id=3), Output(id=4, finish="error", error="NaN")], Stats(1, 2, 3, step_seconds=0.5)),
    Fatal("out of memory", 70),
]


def body(message: Any) -> bytes:
    (frame,) = FrameReader().feed(encode(message))
    return frame


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_message_to_the_engine_survives(message: messages.ToEngine) -> None:
    assert decode_to_engine(body(message)) == message


@pytest.mark.parametrize("message", TO_FRONT, ids=lambda message: type(message).__name__)
def test_message_to_the_front_survives(message: messages.ToFront) -> None:
    assert decode_to_front(body(message)) == message


def test_examples_hold_every_kind_of_message() -> None:
    assert {type(message) for message in TO_ENGINE} == set(get_args(messages.ToEngine))
    assert {type(message) for message in TO_FRONT} == set(get_args(messages.ToFront))


@pytest.mark.parametrize("message", TO_ENGINE, ids=lambda message: type(message).__name__)
def test_message_to_the_engine_is_none_to_the_front(message: messages.ToEngine) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_to_front(body(message))


@given(st.floats(allow_nan=False), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_numbers_cross_exactly(real: float, seed: int, token: int) -> None:
    sampling = Sampling(max_tokens=1, temperature=real, seed=seed, logit_bias=((token, real),))
    crossed = decode_to_engine(body(Submit(id=0, prompt=[token], sampling=sampling)))
    assert crossed == Submit(id=0, prompt=[token], sampling=sampling)


def test_token_step_is_small() -> None:
    """A decode step of 32 sequences sends one token each: a few bytes a token, since every step pays for them."""
    step = StepDone([Output(id=10_000 + i, tokens=[30_000 + i]) for i in range(32)], Stats(running=32))
    assert len(encode(step)) < 32 * 16 + 64


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30), max_size=40))
def test_frames_are_the_same_at_every_split(bodies: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(struct.pack("<I", len(part)) + part for part in bodies)
    reader, found, position = FrameReader(), [], 0
    for size in [*sizes, len(stream)]:
        found += reader.feed(stream[position : position + size])
        position += size
    assert found == bodies
    assert list(reader.feed(b"")) == []


def test_frames_are_the_same_byte_by_byte() -> None:
    stream = b"".join(encode(message) for message in TO_FRONT)
    reader = FrameReader()
    found = [decode_to_front(frame) for i in range(len(stream)) for frame in reader.feed(stream[i : i + 1])]
    assert found == TO_FRONT


def test_frame_over_the_limit_is_refused_before_its_body_comes() -> None:
    reader = FrameReader()
    with pytest.raises(ValueError, match=f"a frame of {messages.MAX_FRAME + 1} bytes is over the limit"):
        list(reader.feed(struct.pack("<I", messages.MAX_FRAME + 1)))


def test_frame_at_the_limit_is_waited_for() -> None:
    assert list(FrameReader().feed(struct.pack("<I", messages.MAX_FRAME))) == []


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\x81\xa4type\xa3odd", b"\xff" * 9, encode(Shutdown())])
def test_garbage_is_no_message(garbage: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_engine(garbage)
