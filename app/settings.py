"""One frozen, validated object from flags and environment.

`Settings` is the single table: a field is a flag (`--max-num-seqs`), an environment variable
(`PILOTLIGHT_MAX_NUM_SEQS`), a line of `--help` and of docs/flags.md, and a key that crosses to the engine.
Flags win over the environment; an empty variable counts as unset. Names are vLLM's where vLLM has one.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from . import EXEC_TIME
from .errors import UsageError
from .peek import DEFAULT_DEVICE, DEFAULT_HOST, DEFAULT_PORT, ENV_PREFIX, LARGEST_PORT, from_environment, on_runpod
from .peek import env_name as env_name  # and for whoever has to do with settings
from .peek import flag as flag

PAGE_SIZE = 16  # tokens in a KV page

_LARGEST = 2**63 - 1  # of the integers that cross to the engine
Positive = Annotated[int, Meta(ge=1)]
_KINDS = {
    "str": "text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "object": "a mapping",
    "array": "a list",
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a server or an `LLM` can be told. Built by `from_args` or `from_kwargs`, which validate."""

    model: Annotated[
        str,
        Meta(description="directory of a snapshot or of a Hugging Face checkpoint, or a hub id that is cached here"),
    ]
    served_model_name: Annotated[
        tuple[str, ...],
        Meta(description="names under which the API offers the model, separated by commas (default: the model)"),
    ] = ()
    host: Annotated[str, Meta(description="address to listen on; 0.0.0.0 for every interface")] = DEFAULT_HOST
    port: Annotated[int, Meta(description="port to listen on; 0 picks a free one", ge=0, le=LARGEST_PORT)] = (
        DEFAULT_PORT
    )
    health_port: Annotated[
        Annotated[int, Meta(ge=1, le=LARGEST_PORT)] | None,
        Meta(description="a second port that answers too, for a platform that asks for health elsewhere"),
    ] = None
    ping_loading_status: Annotated[
        Literal["503", "204"],
        Meta(
            description="what /ping says while the model loads: 204 is RunPod's word for it, and the default there; "
            "elsewhere any 2xx is ready"
        ),
    ] = "503"
    api_key: Annotated[
        str | None,
        Meta(
            description="key that requests must carry as a bearer token; as a variable it is not seen in the list of "
            "processes, as a flag it is"
        ),
    ] = None
    device: Annotated[
        str,
        Meta(
            description="where the model runs: on the CPU, on a GPU, or on the first GPU that there is, else the CPU",
            pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$",
            extra={"values": ("auto", "cpu", "cuda", "cuda:N")},
        ),
    ] = DEFAULT_DEVICE
    dtype: Annotated[
        Literal["auto", "float32"], Meta(description="dtype of computation; on a GPU always the weights' own")
    ] = "auto"
    max_model_len: Annotated[
        Positive | None,
        Meta(description="tokens of prompt and answer together (default: the model's own limit, or what fits)"),
    ] = None
    max_num_seqs: Annotated[int, Meta(description="sequences that run at once", ge=1, le=1024)] = 32
    max_num_batched_tokens: Annotated[int, Meta(description="tokens of a prefill chunk", ge=PAGE_SIZE, le=65536)] = (
        512
    )
    max_waiting_requests: Annotated[int, Meta(description="sequences that may wait; more are answered 503", ge=0)] = (
        1024
    )
    enable_prefix_caching: Annotated[bool, Meta(description="reuse the K/V of prompts that begin alike")] = True
    gpu_memory_utilization: Annotated[
        float, Meta(description="share of the device's memory for weights, KV and activations", gt=0, le=1)
    ] = 0.9
    kv_cache_memory_bytes: Annotated[
        Positive | None,
        Meta(
            description="bytes of the KV cache, as 2000M or 2G (default: what the running sequences can need, within "
            "the memory and, on the CPU, within 1 GiB)"
        ),
    ] = None
    kv_cache_dtype: Annotated[
        Literal["auto", "fp8"],
        Meta(description="dtype of the KV cache; fp8 holds twice the tokens, less precisely, on a GPU"),
    ] = "auto"
    tensor_parallel_size: Annotated[int, Meta(description="devices that share the model; 1 so far", ge=1)] = 1
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=_LARGEST)] | None,
        Meta(description="makes requests that bring no seed repeatable too"),
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="chat template that replaces the model's: a file, or the template itself")
    ] = None
    max_logprobs: Annotated[
        int, Meta(description="most alternatives a request may ask for per token", ge=0, le=100)
    ] = 20
    max_request_bytes: Annotated[int, Meta(description="bytes of the largest request body, as 8M", ge=1024)] = (
        8 * 1024 * 1024
    )
    allowed_origins: Annotated[
        tuple[str, ...], Meta(description="origins for CORS, separated by commas; * for any")
    ] = ()
    shutdown_timeout: Annotated[float, Meta(description="seconds that running requests get after SIGTERM", ge=0)] = (
        25.0
    )
    startup_timeout: Annotated[
        float, Meta(description="seconds that the engine may take to load; requests wait for it meanwhile", gt=0)
    ] = 600.0
    engine_timeout: Annotated[
        float, Meta(description="seconds that one engine step may take; a longer one is a hang, and kills it", gt=0)
    ] = 120.0
    max_engine_deaths: Annotated[
        int, Meta(description="engine deaths within ten minutes after which the server exits", ge=1)
    ] = 3
    runpod_queue: Annotated[
        bool, Meta(description="take jobs from RunPod's queue too; needs the runpod extra (docs/deploy.md)")
    ] = False
    verify: Annotated[bool, Meta(description="hash the snapshot's weights at start")] = False
    startup_trace: Annotated[
        str | None,
        Meta(
            description="file for the start's ledger, in Chrome's trace format (opens in Perfetto), written at the "
            "first token"
        ),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="least severe log lines shown")
    ] = "info"

    def validate(self) -> "Settings":
        """Checks what no field's type can express. Raises UsageError."""
        if not self.model:
            raise UsageError("no model was named: pass a directory or a hub id, or set PILOTLIGHT_MODEL")
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, int) and value > _LARGEST:
                raise UsageError(f"{flag(name)} (or {env_name(name)}) {value}: expected a whole number <= {_LARGEST}")
        if self.api_key is not None and (not self.api_key or self.api_key != self.api_key.strip()):
            raise UsageError(
                "--api-key (or PILOTLIGHT_API_KEY) is empty, or has a blank at an end, which no header carries; "
                "leave it out to serve without a key"
            )
        if self.tensor_parallel_size > 1:
            raise UsageError(
                f"--tensor-parallel-size {self.tensor_parallel_size}: this version runs on one device; use 1"
            )
        return self


FIELDS: dict[str, Any] = get_type_hints(Settings, include_extras=True)
VARIABLES = frozenset(env_name(name) for name in FIELDS)


def help_of(name: str) -> str:
    return str(FIELDS[name].__metadata__[0].description)


def values_of(name: str) -> tuple[str, ...]:
    """What a setting may be, where that is a few words; else nothing."""
    kind = FIELDS[name].__origin__
    if get_origin(kind) is Literal:
        return get_args(kind)
    named: tuple[str, ...] = (FIELDS[name].__metadata__[0].extra or {}).get("values", ())
    return named


def is_switch(name: str) -> bool:
    return FIELDS[name].__origin__ is bool


def default_of(name: str) -> Any:
    for info in msgspec.structs.fields(Settings):
        if info.name == name:
            return info.default
    raise KeyError(name)


def from_kwargs(**values: Any) -> Settings:
    """Typed values (an `LLM`'s arguments). Raises UsageError."""
    unknown = [name for name in values if name not in FIELDS]
    if unknown:
        raise UsageError(f"unknown setting {unknown[0]!r}{nearest(unknown[0], FIELDS)}")
    return _convert(values, strict=True)


def unknown_variables(environ: Mapping[str, str]) -> str | None:
    """One line about variables that look like settings and are none, or None where there is none.

    A warning, where a wrong flag is refused: Kubernetes sets variables of its own for each service, and a service's
    name may begin with our prefix.
    """
    names = [
        name
        for name, value in environ.items()
        if name.startswith(ENV_PREFIX) and name not in VARIABLES and name != EXEC_TIME
        if not _is_of_kubernetes(name, value)
    ]
    if not names:
        return None
    return "; ".join(no_variable(name) for name in names) + " (docs/flags.md has them all)"


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Whether Kubernetes has set a variable, to say where a service is."""
    import re

    own = r"_SERVICE_(HOST|PORT(_\w+)?)$|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$"
    return re.search(own, name) is not None or (name.endswith("_PORT") and "://" in value)


def no_variable(name: str) -> str:
    known = [field.upper() for field in FIELDS]
    return f"{name} is no variable of the server{nearest(name.removeprefix(ENV_PREFIX), known, ENV_PREFIX)}"


def from_args(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The `serve` command's arguments and the environment. Raises UsageError, or SystemExit for --help."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    theirs: dict[str, str] = {}
    if on_runpod(environ):
        from .runpod_env import settings_of

        theirs = settings_of(environ)
        values["ping_loading_status"] = "204"
    for name in FIELDS:
        text = theirs.get(name) or from_environment(name, environ)
        if text:
            values[name] = _split(name, text)
    values.update(_parse_flags(argv))
    return _convert(values, strict=False)


def _parse_flags(argv: Sequence[str]) -> dict[str, Any]:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(message)

    parser = Parser(
        prog="pilotlight serve",
        usage="pilotlight serve MODEL [--FLAG VALUE ...]",
        description="Serve a model over the OpenAI API.",
        epilog=f"Each flag is also an environment variable: --max-num-seqs is {env_name('max_num_seqs')}.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser.add_argument("model_argument", nargs="?", metavar="MODEL", help=help_of("model"))
    for name in FIELDS:
        if is_switch(name):
            parser.add_argument(flag(name), dest=name, action=argparse.BooleanOptionalAction, help=_help_line(name))
        else:
            parser.add_argument(flag(name), dest=name, metavar=_metavar(name), help=_help_line(name))
    known, rest = parser.parse_known_args(argv)
    if rest:
        known_flags = [flag(name).removeprefix("--") for name in FIELDS]  # what all have in common is no likeness
        near = nearest(rest[0].partition("=")[0].removeprefix("--"), known_flags, "--")
        raise UsageError(f"unknown argument {rest[0]!r}{near or '; pilotlight serve --help lists them'}")
    values = vars(known)
    if "model_argument" in values:
        positional = values.pop("model_argument")
        if values.setdefault("model", positional) != positional:
            raise UsageError(f"two models were named: {positional!r} and {values['model']!r}")
    return {name: _split(name, value) if isinstance(value, str) else value for name, value in values.items()}


def _convert(values: dict[str, Any], *, strict: bool) -> Settings:
    values.setdefault("model", "")
    for name, value in values.items():
        if not _is_text(value):
            raise UsageError(f"{flag(name)} (or {env_name(name)}): expected UTF-8")
    try:
        return msgspec.convert(values, Settings, strict=strict).validate()
    except msgspec.ValidationError as error:
        message, _, path = str(error).rpartition(" - at `$.")
        name = path.rstrip("`").partition("[")[0]
        if name not in FIELDS:
            raise UsageError(str(error)) from None
        shown = "(hidden)" if name == "api_key" else repr(values[name])
        expected = _expected(name, message)
        raise UsageError(f"{flag(name)} (or {env_name(name)}) {shown}: {expected}; {help_of(name)}") from None


def _is_text(value: Any) -> bool:
    """False for bytes of a command line that are not UTF-8: Python has them as lone surrogates."""
    parts = value if isinstance(value, tuple) else (value,)
    return all(part.encode(errors="replace").decode() == part for part in parts if isinstance(part, str))


def _expected(name: str, message: str) -> str:
    """What a setting takes: "expected a whole number >= 1", "expected one of auto, cpu"."""
    if values_of(name):
        return "expected one of " + ", ".join(values_of(name))
    return in_words(message) + (", or one with K, M or G" if _is_size(name) else "")


def in_words(message: str) -> str:
    """msgspec's "Expected `int | null` >= 1, got `str`" made plain: "expected a whole number >= 1"."""
    message = message.partition(", got ")[0].partition(" matching regex")[0].replace(" | null", "")
    for kind, words in _KINDS.items():
        message = message.replace(f"`{kind}`", words)
    return message[:1].lower() + message[1:]


def _is_size(name: str) -> bool:
    return name.endswith("_bytes")


def _split(name: str, text: str) -> Any:
    if get_origin(FIELDS[name].__origin__) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if _is_size(name):
        with suppress(ValueError):  # refused with all that is wrong
            return parse_size(text)
    return text


def parse_size(text: str) -> int:
    """Bytes: "8388608", "2000M", "2G"; K, M and G are powers of 1000, as in `amount`. Raises ValueError."""
    factor = {"K": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:].upper(), 1)
    digits = text if factor == 1 else text[:-1]
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(text)
    return int(digits) * factor


def _metavar(name: str) -> str:
    values = values_of(name)
    return "{" + ",".join(values) + "}" if values else name.upper()


def _help_line(name: str) -> str:
    default = default_of(name)
    if default is msgspec.NODEFAULT or default is None or default == ():
        return help_of(name).replace("%", "%%")
    shown = ("off", "on")[default] if is_switch(name) else default
    return f"{help_of(name)} (default: {shown})".replace("%", "%%")


def nearest(word: str, words: Iterable[str], prefix: str = "") -> str:
    """ "; did you mean ...?" where one of `words` is like it, else nothing. `prefix` stands before all of them."""
    import difflib

    near = difflib.get_close_matches(word, sorted(words), n=1, cutoff=0.6)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
