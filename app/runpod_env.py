"""What RunPod sets in a worker's environment, and the variables of its vLLM worker: a template that was made for that
worker runs this server once its image is changed.

Apart from the settings because none of it means anything elsewhere. Each of those variables is understood here, or
ignored with a warning, or refused because ignoring it would change what the endpoint answers. Names and defaults: the
`.runpod/hub.json`, `docs/configuration.md` and `src/args_builder.py` of runpod-workers/worker-vllm.
"""

from collections.abc import Mapping

from .errors import UsageError

VOLUME = "/runpod-volume"  # where RunPod mounts its cache of models, read-only, or a network volume

# A setting's variables, the first that says something wins. They win over ours, since the image says PILOTLIGHT_MODEL
# itself.
UNDERSTOOD = {
    "model": ("MODEL_NAME",),
    "served_model_name": ("OPENAI_SERVED_MODEL_NAME_OVERRIDE", "SERVED_MODEL_NAME", "MODEL_NAME"),
    "dtype": ("DTYPE",),
    "max_model_len": ("MAX_MODEL_LEN",),
    "max_num_seqs": ("MAX_NUM_SEQS",),
    "max_num_batched_tokens": ("MAX_NUM_BATCHED_TOKENS",),
    "enable_prefix_caching": ("ENABLE_PREFIX_CACHING",),
    "gpu_memory_utilization": ("GPU_MEMORY_UTILIZATION",),
    "kv_cache_dtype": ("KV_CACHE_DTYPE",),
    "tensor_parallel_size": ("TENSOR_PARALLEL_SIZE",),
    "max_logprobs": ("MAX_LOGPROBS",),
    "seed": ("SEED",),
    "chat_template": ("CUSTOM_CHAT_TEMPLATE", "CHAT_TEMPLATE"),
    "kv_cache_memory_bytes": ("KV_CACHE_MEMORY_BYTES",),
}
# vLLM's words, in small letters, for what is ours: half precision is the weights' own, and what is left to vLLM is
# left to us.
_WORDS = {
    "DTYPE": {"half": "auto", "float16": "auto", "bfloat16": "auto", "float": "float32"},
    "KV_CACHE_DTYPE": {"fp8_e4m3": "fp8"},
    "ENABLE_PREFIX_CACHING": {"yes": "true", "on": "true", "no": "false", "off": "false"},
    "MAX_MODEL_LEN": {"auto": "", "-1": "", "0": ""},
    "MAX_NUM_BATCHED_TOKENS": {"0": ""},
    "SEED": {"0": ""},  # vLLM's default, which makes no request repeatable there
}

# Values that ask for nothing, whatever the variable; and where it could be switched on.
_UNSAID = {"", "none", "null"}
_NOTHING = _UNSAID | {"0", "false", "no", "off", "[]", "{}"}

_REVISION = "the cache's main revision is served; name its directory as MODEL_NAME for another"

# Ignoring it would change the answers: the worker's own defaults, which are accepted, and what to do instead.
_REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "ALLOWED_ORIGINS": (('["*"]',), "set PILOTLIGHT_ALLOWED_ORIGINS, separated by commas"),
    "QUANTIZATION": ((), "weights are taken as they are; name a model that is not quantised, and leave it out"),
    "TOKENIZER": ((), "the tokenizer is the model's own; leave it out"),
    "TOKENIZER_NAME": ((), "the tokenizer is the model's own; leave it out"),
    "TOKENIZER_REVISION": ((), "the tokenizer is the model's own; leave it out"),
    "MODEL_REVISION": (("main",), _REVISION),
    "REVISION": (("main",), _REVISION),
    "HF_CONFIG_PATH": ((), "the configuration is the model's own; leave it out"),
    "LOGITS_PROCESSORS": ((), "logits are processed as the request says; leave it out"),
    "ENABLE_LORA": ((), "adapters are not served; merge it into the model"),
    "LORA_MODULES": ((), "adapters are not served; merge it into the model"),
    "PIPELINE_PARALLEL_SIZE": (("1",), "this version runs on one device; leave it out"),
    "DATA_PARALLEL_SIZE": (("1",), "this version runs on one device; let the endpoint have more workers instead"),
    "REASONING_PARSER": ((), "thoughts are part of the answer's text; leave it out and separate them there"),
    "ENABLE_AUTO_TOOL_CHOICE": ((), "tool calls are not in this version; leave it out"),
    "ROPE_SCALING": ((), "put rope_scaling into the model's config.json"),
    "ROPE_THETA": ((), "put rope_theta into the model's config.json"),
    "HF_OVERRIDES": ((), "put it into the model's config.json"),
    "OVERRIDE_GENERATION_CONFIG": ((), "put it into the model's generation_config.json"),
    "GENERATION_CONFIG": (("auto",), "the model's own generation_config.json is used; leave it out"),
    "OPENAI_RESPONSE_ROLE": (("assistant",), "answers are the assistant's; leave it out"),
    "RESPONSE_ROLE": (("assistant",), "answers are the assistant's; leave it out"),
    "VLLM_EXTRA_ARGS": ((), "vLLM's flags are not read; set the variables of docs/flags.md"),
    "VLLM_CONFIG_FILE": ((), "vLLM's files are not read; set the variables of docs/flags.md"),
}

# About how vLLM works, not about what it answers: the worker's own defaults, which need no warning.
_WITHOUT_EFFECT: dict[str, tuple[str, ...]] = {
    "ATTENTION_BACKEND": (),
    "BLOCK_SIZE": ("16",),
    "COMPILATION_CONFIG": (),
    "CPU_OFFLOAD_GB": (),
    "DEFAULT_BATCH_SIZE": ("50",),
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": ("3",),
    "DEFAULT_MIN_BATCH_SIZE": ("1",),
    "DEVICE": ("auto", "cuda"),
    "DISABLE_CUSTOM_ALL_REDUCE": (),
    "DISABLE_LOG_REQUESTS": ("true", "1"),
    "DISABLE_LOG_STATS": (),
    "DISABLE_SLIDING_WINDOW": (),
    "DISTRIBUTED_EXECUTOR_BACKEND": ("mp",),
    "DOWNLOAD_DIR": (),
    "ENABLE_CHUNKED_PREFILL": ("true", "1"),
    "ENABLE_EXPERT_PARALLEL": (),
    "ENABLE_LOG_REQUESTS": (),
    "ENFORCE_EAGER": (),
    "FULLY_SHARDED_LORAS": (),
    "LOAD_FORMAT": ("auto",),
    "LORA_DTYPE": ("auto",),
    "MAX_CONCURRENCY": ("30",),
    "MAX_CPU_LORAS": (),
    "MAX_LORAS": ("1",),
    "MAX_LORA_RANK": ("16",),
    "MAX_PARALLEL_LOADING_WORKERS": ("1",),
    "MAX_SEQ_LEN_TO_CAPTURE": (),
    "MODEL_LOADER_EXTRA_CONFIG": (),
    "NGRAM_PROMPT_LOOKUP_MAX": (),
    "NUM_GPU_BLOCKS_OVERRIDE": (),
    "NUM_SPECULATIVE_TOKENS": (),
    "PYTORCH_ALLOC_CONF": ("expandable_segments:true",),
    "RAW_OPENAI_OUTPUT": ("true", "1"),
    "RAY_WORKERS_USE_NSIGHT": (),
    "SCHEDULER_DELAY_FACTOR": (),
    "SCHEDULING_POLICY": ("fcfs",),
    "SKIP_TOKENIZER_INIT": (),
    "SPECULATIVE_CONFIG": (),
    "SPECULATIVE_METHOD": (),
    "SPECULATIVE_MODEL": (),
    "SWAP_SPACE": ("4",),
    "TOKENIZER_MODE": ("auto",),
    "TOOL_CALL_PARSER": (),
    "TRUST_REMOTE_CODE": (),
    "VLLM_USE_DEEP_GEMM": (),
}


def settings_of(environ: Mapping[str, str]) -> dict[str, str]:
    """What a template says, by setting. Raises UsageError for what would change the answers and is not there."""
    for name, (defaults, advice) in _REFUSED.items():
        if _asks(environ, name, defaults):
            raise UsageError(f"{name}, of RunPod's vLLM worker: {advice}")  # not its value, which may be a secret
    said: dict[str, str] = {}
    for setting, names in UNDERSTOOD.items():
        if text := next(filter(None, (_said(environ, name) for name in names)), ""):
            said[setting] = text
    return said


def without_effect(environ: Mapping[str, str]) -> str | None:
    """One line about the variables that say how vLLM is to work, or None where there is none."""
    names = [name for name, defaults in _WITHOUT_EFFECT.items() if _asks(environ, name, defaults)]
    if not names:
        return None
    return f"{', '.join(names)}: of RunPod's vLLM worker, without effect here; docs/flags.md has what can be set"


def cache(environ: Mapping[str, str]) -> str:
    """The directory of the models that RunPod has cached for an endpoint."""
    return f"{environ.get('BASE_PATH') or VOLUME}/huggingface-cache/hub"


def _said(environ: Mapping[str, str], name: str) -> str:
    """A variable's text as the settings read it; "" for nothing. The worker takes it without spaces around, too."""
    text = environ.get(name, "").strip()
    word = text.lower()
    return "" if word in _UNSAID else _WORDS.get(name, {}).get(word, text)


def _asks(environ: Mapping[str, str], name: str, defaults: tuple[str, ...]) -> bool:
    value = environ.get(name, "").strip().lower()
    return value not in _NOTHING and value not in defaults
