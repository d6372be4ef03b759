"""The order of scripts/test_image, and its record."""

import argparse
import subprocess
import sys
from pathlib import Path

from scripts.bench_report import machine, origin, write

from . import build, contents, gpu, serving
from .containers import ROOT, say, timed

RECORD = ROOT / "benchmarks" / "image.json"


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="scripts/test_image", allow_abbrev=False)
    parser.add_argument("--base", action="store_true", help="make the stand-in for python:3.11-slim-bookworm anew")
    parser.add_argument("--record", action="store_true", help=f"write sizes and start to {RECORD.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    lint()
    build.prepare()
    try:
        if options.base or not build.has_base():
            with timed("base"):
                build.make_base()
        with timed("image"):
            build.build_image()
        sizes = contents.check()
        starts = serving.check()
        gpu.check()
        build.check_rebuild()
    finally:
        build.remove_leftovers()
    if options.record:
        write({"machine": machine(), **origin(["scripts/test_image", *argv], ()), **sizes, "starts": starts}, RECORD)
        say(f"recorded in {RECORD.relative_to(ROOT)}")
    say("the image was built, served, drained and left with 0")


def lint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if subprocess.run([hadolint, ROOT / "Dockerfile"]).returncode:
        sys.exit("test_image: hadolint objects to the Dockerfile")


if __name__ == "__main__":
    with timed("test_image"):
        main(sys.argv[1:])
