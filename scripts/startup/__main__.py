"""The command line of scripts/measure_startup: what is measured, how often, and where its JSON goes."""

import argparse
import importlib.metadata
import json
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench_report import dtype_of, machine, origin, write
from scripts.bench_server import REMOVED_ENVIRONMENT
from scripts.command_line import count, named_directory, positive

from . import compare, failures, growth, sides, text
from .start import REQUESTS
from .terminal import Progress, summary

_PACKAGES = ("pilotlight", "numpy", "tokenizers", "starlette", "uvicorn", "torch", "transformers")


def main(argv: Sequence[str]) -> None:
    args = parse(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped as well
    result = {
        "machine": machine(),
        "versions": versions(),
        **origin(["scripts/measure_startup", *argv], REMOVED_ENVIRONMENT),
        "count": args.starts,
    }
    with tempfile.TemporaryDirectory(prefix="startup-", dir=args.scratch) as scratch:
        measured = json.dumps(args.measure(args, Path(scratch)))
        result |= json.loads(measured.replace(f"{scratch}/", ""))  # a temporary directory tells nobody anything
    if args.output or not sys.stdout.isatty():  # in a terminal it would push the summary out of sight
        write(result, args.output)


# --- what is measured ---------------------------------------------------------------------------------------------


def starts(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    taking = list(args.peer)
    if args.model:
        taking.insert(0, sides.ours(args.model, args.flags))
    if args.peer_model:
        taking.append(sides.transformers(args.peer_model))
    if args.baselines:
        taking += sides.baselines()
    if not taking:
        raise SystemExit("measure_startup: there is nothing to start: name a MODEL or a --peer")
    under = compare.conditions(args.pages, args.request)
    light = sum(not side.weights and side.until != "token" for side in taking)  # started under one condition only
    total = (args.starts + 1) * (len(taking) * len(under) - light * (len(under) - 1))
    found = compare.rounds(taking, under, args.starts, scratch / "server.log", Progress(total))
    result = compare.result(taking, found)
    if args.model:
        result = {"model": Path(args.model).name, "dtype": dtype_of(Path(args.model)), **result}
        result["against"] = {name: compare.ratios(each, sides.OURS) for name, each in result["conditions"].items()}
    print("\n".join(summary(result)), file=sys.stderr)
    return result


def texts(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    vocabularies = dict(args.vocabulary)
    progress = Progress(2 * len(vocabularies) * (args.starts + 1))
    result = text.measure(vocabularies, args.flags, args.starts, scratch, progress)
    for name, seconds in result["later"].items():
        print(f"{name}: a text's first token comes {1000 * seconds:.1f} ms later than its ids'", file=sys.stderr)
    return result


def growing(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    progress = Progress(len(args.gigabytes) * len(args.pages) * (args.starts + 1))
    result = growth.measure(args.gigabytes, args.pages, args.flags, args.starts, scratch, progress)
    for state, found in result["pages"].items():
        print(f"{state}: {json.dumps(found['lines'])}", file=sys.stderr)
    return result


def failing(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    progress = Progress(len(failures.KINDS) * (args.starts + 1))
    result = failures.measure(args.starts, scratch, progress)
    for name, found in result["failures"].items():
        print(f"{name}: {1000 * found['exit']:.0f} ms, code {found['codes']}: {found['said']}", file=sys.stderr)
    return result


# --- what is asked ------------------------------------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/measure_startup",
        description="Cold starts, from exec to the first streamed token, in turn with other servers; writes JSON.",
        epilog="Arguments after -- go to `pilotlight serve`.",
    )
    commands = parser.add_subparsers(required=True, metavar="starts|text|growth|failures")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--starts", type=count, default=15, help="of each side under each condition (default: 15)")
    common.add_argument("--scratch", type=Path, help="directory for temporary files")
    common.add_argument(
        "-o", "--output", type=Path, help="JSON file to write (default: standard output, unless it is a terminal)"
    )
    paged = argparse.ArgumentParser(add_help=False)
    paged.add_argument(
        "--pages", nargs="+", choices=compare.PAGES, default=["hot"],
        help="of the weights before each start: in the page cache, or dropped from it (default: hot)",
    )  # fmt: skip

    command = commands.add_parser("starts", parents=[common, paged], help="of a model's server, and of others")
    command.set_defaults(measure=starts)
    command.add_argument("model", nargs="?", help="snapshot or checkpoint directory to serve")
    command.add_argument(
        "--request", nargs="+", choices=REQUESTS, default=["queued"],
        help="the first one is sent as soon as the port opens, and again until it is accepted; or when the server "
        "says that it is ready (default: queued)",
    )  # fmt: skip
    command.add_argument(
        "--peer", type=sides.peer, action="append", default=[], metavar="NAME=COMMAND",
        help="another OpenAI server, on {port}, started in turn with ours",
    )  # fmt: skip
    for name, words in (
        ("url", "where the --peer before it listens, if it takes no port"),
        ("live", "its path that answers 200 when there is an HTTP server (default: /health)"),
        ("ready", "its path that answers 200 when it takes requests (default: /health)"),
        ("model-name", "the model in its requests (default: none is named)"),
    ):
        command.add_argument(f"--{name}", action=sides.OfLastPeer, default=argparse.SUPPRESS, help=words)
    command.add_argument("--peer-model", help="Hugging Face directory for a plain script of transformers")
    command.add_argument("--baselines", action="store_true", help="Python alone, and a hello world of the web stack")

    command = commands.add_parser("text", parents=[common], help="text against token ids, with large vocabularies")
    command.set_defaults(measure=texts)
    command.add_argument(
        "vocabulary", nargs="+", type=named_directory, metavar="NAME=DIRECTORY", help="with a tokenizer.json"
    )

    command = commands.add_parser("growth", parents=[common, paged], help="with the weights' bytes")
    command.set_defaults(measure=growing)
    command.add_argument("--gigabytes", type=positive, nargs="+", default=growth.GIGABYTES)

    command = commands.add_parser("failures", parents=[common], help="starts that cannot succeed, until they say so")
    command.set_defaults(measure=failing)
    cut = list(argv).index("--") if "--" in argv else len(argv)
    args = parser.parse_args(argv[:cut])
    args.flags = list(argv[cut + 1 :])
    return args


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
