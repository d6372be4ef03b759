"""One frozen, validated object from flags and environment.

`Settings` is the single table: a field is a flag (`--max-num-seqs`), an environment variable
(`PILOTLIGHT_MAX_NUM_SEQS`), a line of `--help` and of docs/flags.md, and a key that crosses to the engine.
Flags win over the environment; an empty variable counts as unset. Names are vLLM's where vLLM has one.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from .errors import UsageError

ENV_PREFIX = "PILOTLIGHT_"
PAGE_SIZE = 16  # tokens in a KV page

# Read after their PILOTLIGHT_ name: what platforms set.
PLATFORM_ENV = {"port": "PORT"}

# Read first, in a container that RunPod has started: the names of its vLLM worker, so that a template of that worker
# moves over by its image alone. They win over ours, since the image says PILOTLIGHT_MODEL itself.
RUNPOD_MARKS = ("RUNPOD_ENDPOINT_ID", "RUNPOD_POD_ID")
RUNPOD_ENV = {
    "model": ("MODEL_NAME",),
    "served_model_name": ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "MODEL_NAME"),
    "dtype": ("DTYPE",),
    "max_model_len": ("MAX_MODEL_LEN",),
    "max_num_seqs": ("MAX_NUM_SEQS",),
    "max_num_batched_tokens": ("MAX_NUM_BATCHED_TOKENS",),
    "enable_prefix_caching": ("ENABLE_PREFIX_CACHING",),
    "gpu_memory_utilization": ("GPU_MEMORY_UTILIZATION",),
    "kv_cache_dtype": ("KV_CACHE_DTYPE",),
    "tensor_parallel_size": ("TENSOR_PARALLEL_SIZE",),
    "max_logprobs": ("MAX_LOGPROBS",),
}
# vLLM's words for what is ours: half precision is the weights' own.
_RUNPOD_WORDS = {
    "DTYPE": {"half": "auto", "float16": "auto", "bfloat16": "auto", "float": "float32"},
    "KV_CACHE_DTYPE": {"fp8_e4m3": "fp8"},
}

_LARGEST = 2**63 - 1  # of the integers that cross to the engine
Positive = Annotated[int, Meta(ge=1)]


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
    host: Annotated[str, Meta(description="address to listen on; 0.0.0.0 for every interface")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 picks a free one", ge=0, le=65535)] = 8000
    api_key: Annotated[str | None, Meta(description="key that requests must carry as a bearer token")] = None
    device: Annotated[
        str,
        Meta(
            description="where the model runs: on the CPU, on a GPU, or on the first GPU that there is, else the CPU",
            pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$",
            extra={"values": ("auto", "cpu", "cuda", "cuda:N")},
        ),
    ] = "auto"
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
            description="bytes of the KV cache (default: what the running sequences can need, within the memory and, "
            "on the CPU, within 1 GiB)"
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
    chat_template: Annotated[str | None, Meta(description="file of a chat template that replaces the model's")] = None
    max_logprobs: Annotated[
        int, Meta(description="most alternatives a request may ask for per token", ge=0, le=100)
    ] = 20
    max_request_bytes: Annotated[int, Meta(description="largest request body", ge=1024)] = 8 * 1024 * 1024
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
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="least severe log lines shown")
    ] = "info"

    def validate(self) -> "Settings":
        """Checks what one field alone cannot say. Raises UsageError."""
        if not self.model:
            raise UsageError("no model was named: pass a directory or a hub id, or set PILOTLIGHT_MODEL")
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, int) and value > _LARGEST:
                raise UsageError(f"{flag(name)} (or {env_name(name)}) {value}: expected int <= {_LARGEST}")
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


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


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
        raise UsageError(f"unknown setting {unknown[0]!r}{_nearest(unknown[0], list(FIELDS))}")
    return _convert(values, strict=True)


def from_args(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The `serve` command's arguments and the environment. Raises UsageError, or SystemExit for --help."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    on_runpod = any(environ.get(mark) for mark in RUNPOD_MARKS)
    for name in FIELDS:
        theirs = RUNPOD_ENV.get(name, ()) if on_runpod else ()
        for variable in (*theirs, env_name(name), PLATFORM_ENV.get(name)):
            text = environ.get(variable, "") if variable else ""
            if variable in theirs:
                text = _RUNPOD_WORDS.get(variable, {}).get(text, text)
            # Kubernetes sets PILOTLIGHT_PORT=tcp://... beside a service of that name.
            if text and not (name == "port" and text.startswith("tcp://")):
                values[name] = _split(name, text)
                break
    values.update(_parse_flags(argv))
    return _convert(values, strict=False)


def _parse_flags(argv: Sequence[str]) -> dict[str, Any]:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(message)

    parser = Parser(
        prog="pilotlight serve",
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
        known_flags = [flag(name) for name in FIELDS]
        raise UsageError(f"unknown argument {rest[0]!r}{_nearest(rest[0].partition('=')[0], known_flags)}")
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
    """msgspec's wording made plain: "expected int >= 1", "expected one of auto, cpu"."""
    if values_of(name):
        return "expected one of " + ", ".join(values_of(name))
    message = message.replace("`", "").partition(", got ")[0].removesuffix(" | null")
    return message[:1].lower() + message[1:]


def _split(name: str, text: str) -> Any:
    if get_origin(FIELDS[name].__origin__) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    return text


def _metavar(name: str) -> str:
    values = values_of(name)
    return "{" + ",".join(values) + "}" if values else name.upper()


def _help_line(name: str) -> str:
    default = default_of(name)
    if default is msgspec.NODEFAULT or default is None or default == ():
        return help_of(name).replace("%", "%%")
    return f"{help_of(name)} (default: {default})".replace("%", "%%")


def _nearest(word: str, words: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""
