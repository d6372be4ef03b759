"""A scripted engine: speaks messages.py over the line, computes nothing, and fails in the ways a test asks for.

Run as `python fake_engine.py BEHAVIOUR FD`, BEHAVIOUR being a JSON object; the defaults are below.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotlight.messages import (
    Abort,
    Fatal,
    FrameReader,
    Output,
    Ready,
    Shutdown,
    Span,
    Start,
    Stats,
    StepDone,
    Submit,
    TokenLogprob,
    decode_to_engine,
    encode,
)

DEFAULTS: dict[str, Any] = {
    "ready_delay": 0.0,  # seconds before Ready
    "ready_when": None,  # a file that has to exist before Ready
    "fatal": None,  # [message, exit code] instead of Ready
    "exit_before_ready": None,  # an exit code
    "once": None,  # a file: what is below happens only while it does not exist, and creates it
    "die_after": None,  # steps, then SIGKILL
    "stall_after": None,  # steps, then nothing any more
    "garbage_after": None,  # steps, then bytes that are no message
    "error_after": None,  # tokens of a sequence, then finish "error"
    "tokens": [97, 98, 99],  # repeated until max_tokens
    "end": False,  # instead of repeating: the last token is a stop token
    "logprob": -0.5,
    "tokens_per_step": 1,
    "interval": 0.0,  # seconds per step
    "prefill": 0.0,  # seconds before the first step of a sequence
    "max_model_len": 256,
    "vocab_size": 320,
    "pages": 64,
}


@dataclass
class Sequence:
    submit: Submit
    emitted: int = 0
    runs_from: float = field(default_factory=time.monotonic)


class FakeEngine:
    def __init__(self, behaviour: dict[str, Any], line: socket.socket) -> None:
        self.behaviour = DEFAULTS | behaviour
        self.line = line
        self.frames = FrameReader()
        self.sequences: dict[int, Sequence] = {}
        self.steps = 0
        self.generated = 0
        self.prompt_tokens = 0
        self.armed = True  # whether it misbehaves
        self.max_num_seqs = 1  # until Start says

    def run(self) -> None:
        started = time.monotonic()
        behaviour = self.behaviour
        if behaviour["once"]:
            try:
                Path(behaviour["once"]).touch(exist_ok=False)
            except FileExistsError:
                self.armed = False
        if behaviour["exit_before_ready"] is not None and self.armed:
            sys.exit(behaviour["exit_before_ready"])
        if self.is_left_alone(behaviour["ready_delay"]):
            return
        while behaviour["ready_when"] and not Path(behaviour["ready_when"]).exists():
            if self.is_left_alone(0.005):
                return
        if behaviour["fatal"] and self.armed:
            message, code = behaviour["fatal"]
            self.send(Fatal(message, code))
            sys.exit(code)
        self.send(
            Ready(
                max_model_len=behaviour["max_model_len"],
                vocab_size=behaviour["vocab_size"],
                pages=behaviour["pages"],
                page_size=16,
                device="fake",
                dtype="float32",
                spans=[Span("engine", "load", started, time.monotonic(), 1000)],
            )
        )
        while self.receive():
            if self.sequences:
                self.step()

    def is_left_alone(self, seconds: float) -> bool:
        """Waits, but not for longer than the front lives."""
        poll = select.poll()
        poll.register(self.line, select.POLLRDHUP)
        return bool(poll.poll(seconds * 1000))

    def receive(self) -> bool:
        """Takes in what has come; waits for it when there is nothing to do. False: the front is gone."""
        while True:
            timeout = self.behaviour["interval"] if self.sequences else None
            if not select.select([self.line], [], [], timeout)[0]:
                return True
            try:
                data = self.line.recv(1 << 16)
            except ConnectionResetError:
                return False
            if not data:
                return False
            aborted = False
            for body in self.frames.feed(data):
                match decode_to_engine(body):
                    case Submit() as submit:
                        self.sequences[submit.id] = Sequence(submit, 0, time.monotonic() + self.behaviour["prefill"])
                    case Abort(ids=ids):
                        aborted = True
                        for id in ids:
                            self.sequences.pop(id, None)
                    case Shutdown():
                        return False
                    case Start(settings=settings):
                        self.max_num_seqs = settings.max_num_seqs
            if aborted and not self.sequences:
                self.send(StepDone([], self.stats()))

    def step(self) -> None:
        behaviour, steps = self.behaviour, self.steps
        self.steps += 1
        if self.armed and behaviour["die_after"] is not None and steps >= behaviour["die_after"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.armed and behaviour["garbage_after"] is not None and steps >= behaviour["garbage_after"]:
            self.line.sendall(b"\x03\x00\x00\x00abc")
        if self.armed and behaviour["stall_after"] is not None and steps >= behaviour["stall_after"]:
            self.is_left_alone(3600)
            sys.exit(1)
        now = time.monotonic()
        ready = [sequence for sequence in self.running() if sequence.runs_from <= now]
        outputs = [self.advance(sequence) for sequence in ready]
        for output in outputs:
            if output.finish:
                del self.sequences[output.id]
        if ready:
            self.send(StepDone(outputs, self.stats()))
        elif self.sequences:
            time.sleep(0.005)

    def running(self) -> list[Sequence]:
        return list(self.sequences.values())[: self.max_num_seqs]

    def advance(self, sequence: Sequence) -> Output:
        behaviour, submit = self.behaviour, sequence.submit
        first = sequence.emitted == 0
        tokens, script = [], behaviour["tokens"]
        finish = stop_token = None
        while len(tokens) < behaviour["tokens_per_step"] and finish is None:
            if behaviour["error_after"] is not None and sequence.emitted >= behaviour["error_after"]:
                return Output(submit.id, finish="error", error="the logits hold NaN")
            tokens.append(script[sequence.emitted % len(script)])
            sequence.emitted += 1
            if behaviour["end"] and sequence.emitted == len(script):
                finish, stop_token = "stop", tokens[-1]
            elif sequence.emitted >= submit.sampling.max_tokens:
                finish = "length"
        self.generated += len(tokens)
        self.prompt_tokens += len(submit.prompt) if first else 0
        return Output(
            submit.id,
            tokens,
            finish,
            stop_token,
            self.logprobs(tokens, submit.sampling.logprobs),
            [None, *self.logprobs(submit.prompt[1:], submit.sampling.prompt_logprobs)]
            if first and submit.sampling.prompt_logprobs is not None
            else None,
            cached_tokens=1 if first else 0,
        )

    def logprobs(self, tokens: list[int], top: int | None) -> list[TokenLogprob] | None:
        if top is None:
            return None
        value = float(self.behaviour["logprob"])
        alternatives = tuple((100 + rank, value - rank) for rank in range(top))
        return [TokenLogprob(token, value, alternatives) for token in tokens]

    def stats(self) -> Stats:
        running = len(self.running())
        return Stats(
            running=running,
            waiting=len(self.sequences) - running,
            pages_total=self.behaviour["pages"],
            pages_used=running,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated,
            steps=self.steps,
        )

    def send(self, message: Any) -> None:
        self.line.sendall(encode(message))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the front is gone: go too
    FakeEngine(json.loads(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))).run()
