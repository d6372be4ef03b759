"""The sides of a comparison of starts: our server, other servers, and baselines that no start can be shorter than."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scripts.bench_server import our_command

from .start import Prompt, Side

OURS = "pilotlight"
PROMPT = "The capital of France is"
_SCRIPTS = Path(__file__).parents[1]


def ours(model: str, flags: Sequence[str], name: str = OURS, prompt: Prompt = PROMPT) -> Side:
    return Side(
        name,
        tuple(our_command(model, list(flags))),
        live="/v1/health/live",
        startup="/startup",
        model_name=model,
        prompt=prompt,
    )


def baselines() -> list[Side]:
    """The interpreter alone, and the least server that can be made of the same web stack."""
    hello = (sys.executable, "-I", str(_SCRIPTS / "startup" / "hello.py"), "{port}")
    return [
        Side("python -I -c pass", (sys.executable, "-I", "-c", "pass"), until="exit"),
        Side("hello world of Starlette and uvicorn", hello, until="live"),
    ]


def transformers(directory: str, dtype: str = "bfloat16") -> Side:
    """A plain script: load the model, generate a token, print it."""
    script = str(_SCRIPTS / "bench_peer")
    return Side("transformers", (sys.executable, script, "first-token", directory, dtype, PROMPT), until="line")


def peer(text: str) -> Side:
    """--peer NAME=COMMAND."""
    name, equals, command = text.partition("=")
    if not name or not equals or not command:
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=COMMAND, {{port}} in COMMAND or --url after it")
    return Side(name, tuple(shlex.split(command)), prompt=PROMPT)


class OfLastPeer(argparse.Action):
    """An option that says more of the --peer before it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any) -> None:
        if not namespace.peer:
            parser.error(f"{self.option_strings[0]} stands behind the --peer that it is of")
        namespace.peer[-1] = replace(namespace.peer[-1], **{self.dest: value})
