"""RunPod's side beside the rendering: its vLLM worker's variables, and the files of its hub."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotlight.deploy.gpus import RUNPOD
from pilotlight.device.cuda.driver import FLOOR
from pilotlight.errors import UsageError
from pilotlight.runpod_env import UNDERSTOOD, without_effect
from pilotlight.settings import FIELDS, Settings, env_name, from_args

HUB = Path(__file__).parents[2] / ".runpod"
IMAGE = {"PILOTLIGHT_MODEL": "/model", "PILOTLIGHT_SERVED_MODEL_NAME": "built-in"}  # what the image itself sets
WORKER = {"RUNPOD_ENDPOINT_ID": "4m7x2k9q"} | IMAGE


def read(environ: dict[str, str]) -> Settings:
    return from_args([], environ)


def test_template_of_the_vllm_worker_moves_over() -> None:
    template = {
        "MODEL_NAME": "Qwen/Qwen2.5-0.5B-Instruct",
        "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "qwen",
        "DTYPE": "bfloat16",
        "MAX_MODEL_LEN": "4096",
        "MAX_NUM_SEQS": "256",
        "MAX_NUM_BATCHED_TOKENS": "2048",
        "ENABLE_PREFIX_CACHING": "False",
        "GPU_MEMORY_UTILIZATION": "0.95",
        "KV_CACHE_DTYPE": "fp8_e4m3",
        "TENSOR_PARALLEL_SIZE": "1",
        "MAX_LOGPROBS": "5",
        "SEED": "7",
        "CUSTOM_CHAT_TEMPLATE": "{{ messages[0].content }}",
        "KV_CACHE_MEMORY_BYTES": "1000000",
    }
    others = {"SERVED_MODEL_NAME", "CHAT_TEMPLATE"}  # the same by vLLM's own names, which come second
    assert set(template) | others == {name for names in UNDERSTOOD.values() for name in names}
    assert read(WORKER | template | dict.fromkeys(others, "x")) == read(WORKER | template)
    assert read(WORKER | template) == Settings(
        model="Qwen/Qwen2.5-0.5B-Instruct",
        served_model_name=("qwen",),
        max_model_len=4096,
        max_num_seqs=256,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.95,
        kv_cache_dtype="fp8",
        max_logprobs=5,
        seed=7,
        chat_template="{{ messages[0].content }}",
        kv_cache_memory_bytes=1000000,
        ping_loading_status="204",
    )
    # A flag wins over everything, and elsewhere than at RunPod the names mean nothing.
    assert from_args(["--max-num-seqs", "7"], WORKER | template).max_num_seqs == 7
    assert read(IMAGE | template) == read(IMAGE)


def test_another_model_is_not_offered_under_the_image_s_name() -> None:
    assert read(WORKER).served_model_name == ("built-in",)
    assert read(WORKER | {"MODEL_NAME": "a/b"}).served_model_name == ("a/b",)
    assert read(WORKER | {"MODEL_NAME": ""}) == read(WORKER)


@pytest.mark.parametrize(
    ("word", "dtype"),
    [("auto", "auto"), ("half", "auto"), ("float16", "auto"), ("float", "float32"), ("float32", "float32")],
)
def test_dtypes_are_vllm_s(word: str, dtype: str) -> None:
    assert read(WORKER | {"DTYPE": word}).dtype == dtype


@pytest.mark.parametrize("name", sorted({name for names in UNDERSTOOD.values() for name in names}))
@pytest.mark.parametrize("text", ["", " ", "None", "null", "NONE "])
def test_value_that_says_nothing_is_as_good_as_none(name: str, text: str) -> None:
    assert read(WORKER | {name: text}) == read(WORKER)


@pytest.mark.parametrize(
    ("name", "text", "same"),
    [
        ("MODEL_NAME", " a/b\n", "a/b"),
        ("MAX_NUM_SEQS", " 7 ", "7"),
        ("GPU_MEMORY_UTILIZATION", "0.8 ", "0.8"),
        ("DTYPE", "BFloat16", "auto"),
        ("KV_CACHE_DTYPE", "FP8_E4M3 ", "fp8"),
        ("MAX_MODEL_LEN", "Auto", ""),
        ("ENABLE_PREFIX_CACHING", "no", "false"),
        ("ENABLE_PREFIX_CACHING", "On", "true"),
        ("SERVED_MODEL_NAME", "qwen", "qwen"),
    ],
)
def test_values_are_read_as_the_vllm_worker_reads_them(name: str, text: str, same: str) -> None:
    assert read(WORKER | {name: text}) == read(WORKER | {name: same})


@pytest.mark.parametrize(("name", "text"), [("DTYPE", "int4"), ("KV_CACHE_DTYPE", "fp8_e5m2"), ("MAX_NUM_SEQS", "x")])
def test_what_is_not_there_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}': expected"):
        read(WORKER | {name: text})


# What its hub.json sets where nobody has chosen anything, and what its documentation calls the defaults.
DEFAULTS = {
    "BASE_PATH": "/runpod-volume", "BLOCK_SIZE": "16", "DEFAULT_BATCH_SIZE": "50",
    "DEFAULT_BATCH_SIZE_GROWTH_FACTOR": "3", "DEFAULT_MIN_BATCH_SIZE": "1", "DEVICE": "auto",
    "DISABLE_CUSTOM_ALL_REDUCE": "false", "DISABLE_LOG_STATS": "false", "DISABLE_SLIDING_WINDOW": "false",
    "DISTRIBUTED_EXECUTOR_BACKEND": "mp", "DTYPE": "auto", "ENABLE_AUTO_TOOL_CHOICE": "false",
    "ENABLE_CHUNKED_PREFILL": "true", "ENABLE_EXPERT_PARALLEL": "false", "ENABLE_LOG_REQUESTS": "false",
    "ENABLE_LORA": "false", "ENABLE_PREFIX_CACHING": "false", "ENFORCE_EAGER": "false",
    "FULLY_SHARDED_LORAS": "false", "GPU_MEMORY_UTILIZATION": "0.95", "KV_CACHE_DTYPE": "auto",
    "LORA_DTYPE": "auto", "MAX_CONCURRENCY": "30", "MAX_LOGPROBS": "20", "MAX_LORAS": "1", "MAX_LORA_RANK": "16",
    "MAX_MODEL_LEN": "auto", "MAX_NUM_BATCHED_TOKENS": "0", "MAX_NUM_SEQS": "256",
    "MAX_PARALLEL_LOADING_WORKERS": "1", "MODEL_REVISION": "main", "OPENAI_RESPONSE_ROLE": "assistant",
    "PIPELINE_PARALLEL_SIZE": "1", "PYTORCH_ALLOC_CONF": "expandable_segments:True", "QUANTIZATION": "",
    "RAW_OPENAI_OUTPUT": "1", "RAY_WORKERS_USE_NSIGHT": "false", "REASONING_PARSER": "",
    "SCHEDULER_DELAY_FACTOR": "0", "SEED": "0", "SKIP_TOKENIZER_INIT": "false", "TENSOR_PARALLEL_SIZE": "1",
    "TOKENIZER": "", "TOKENIZER_MODE": "auto", "TRUST_REMOTE_CODE": "false", "VLLM_USE_DEEP_GEMM": "0",
}  # fmt: skip


def test_defaults_of_the_vllm_worker_ask_for_nothing() -> None:
    assert read(WORKER | DEFAULTS) == Settings(
        model="/model",
        served_model_name=("built-in",),
        max_num_seqs=256,
        gpu_memory_utilization=0.95,
        enable_prefix_caching=False,
        ping_loading_status="204",
    )
    assert without_effect(DEFAULTS) is None


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("QUANTIZATION", "awq", "weights are taken as they are; name a model that is not quantised"),
        ("TOKENIZER", "a/b", "the tokenizer is the model's own"),
        ("MODEL_REVISION", "abc123", "name its directory as MODEL_NAME"),
        ("ENABLE_LORA", "True", "merge it into the model"),
        ("LORA_MODULES", '[{"name":"a","path":"b"}]', "merge it into the model"),
        ("PIPELINE_PARALLEL_SIZE", "2", "this version runs on one device"),
        ("REASONING_PARSER", "deepseek_r1", "separate them there"),
        ("ENABLE_AUTO_TOOL_CHOICE", "true", "tool calls are not in this version"),
        ("ROPE_SCALING", '{"rope_type":"yarn"}', "config.json"),
        ("OPENAI_RESPONSE_ROLE", "bot", "answers are the assistant's"),
        ("REVISION", "abc123", "name its directory as MODEL_NAME"),
        ("HF_CONFIG_PATH", "/config", "the configuration is the model's own"),
        ("LOGITS_PROCESSORS", "a.b:C", "as the request says"),
        ("VLLM_EXTRA_ARGS", "--api-key sk-123", "set the variables of docs/flags.md"),
    ],
)
def test_what_would_change_the_answers_is_refused_with_what_to_do(name: str, value: str, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(WORKER | {name: value})
    assert str(caught.value).startswith(f"{name}, of RunPod's vLLM worker: ")
    assert value not in str(caught.value)
    assert advice in str(caught.value)
    assert read(IMAGE | {name: value}) == read(IMAGE)  # elsewhere it means nothing


def test_what_only_tunes_vllm_is_named_in_one_line() -> None:
    tuned = {"ENFORCE_EAGER": "true", "MAX_CONCURRENCY": "300", "BLOCK_SIZE": "32", "TRUST_REMOTE_CODE": "1"}
    assert read(WORKER | tuned) == read(WORKER)
    assert without_effect(WORKER | DEFAULTS | tuned) == (
        "BLOCK_SIZE, ENFORCE_EAGER, MAX_CONCURRENCY, TRUST_REMOTE_CODE: of RunPod's vLLM worker, without effect "
        "here; docs/flags.md has what can be set"
    )


def hub(name: str) -> Any:
    return json.loads((HUB / name).read_text())


def test_hub_s_variables_are_ones_that_the_worker_reads() -> None:
    config = hub("hub.json")["config"]
    known = {name for names in UNDERSTOOD.values() for name in names} | {env_name("runpod_queue")}
    asked = {
        entry["key"]: entry["input"]["default"] if "input" in entry else entry["value"] for entry in config["env"]
    }
    assert asked.keys() <= known
    values = {name: str(value) for name, value in asked.items()}
    defaults = Settings(model="/model", served_model_name=("built-in",), runpod_queue=True, ping_loading_status="204")
    assert read(WORKER | values) == defaults
    assert {entry["key"] for entry in hub("tests.json")["config"]["env"]} <= known
    assert set(UNDERSTOOD) <= set(FIELDS)


def test_hub_names_pools_and_drivers_that_will_do() -> None:
    config = hub("hub.json")["config"]
    assert set(config["gpuIds"].split(",")) <= {offer.name for offer in RUNPOD}
    for versions in (config["allowedCudaVersions"], hub("tests.json")["config"]["allowedCudaVersions"]):
        numbers = [tuple(map(int, version.split("."))) for version in versions]
        assert numbers == sorted(numbers)
        assert all(major * 1000 + minor * 10 >= FLOOR for major, minor in numbers)


def test_hub_s_files_have_the_fields_of_its_publishing_guide() -> None:
    """https://docs.runpod.io/hub/publishing-guide: what must be there, what may be, and of which type."""
    listing = hub("hub.json")
    assert listing.keys() <= {"title", "description", "type", "category", "iconUrl", "config"}
    assert listing["type"] == "serverless"
    assert listing["category"] in {"audio", "embedding", "language", "video", "image"}
    assert all(isinstance(listing[name], str) for name in ("title", "description"))
    config = listing["config"]
    required = {"runsOn", "containerDiskInGb", "gpuCount", "gpuIds"}
    assert required <= config.keys() <= required | {"allowedCudaVersions", "env", "presets"}
    assert config["runsOn"] == "GPU"
    for entry in config["env"]:
        assert entry.keys() in ({"key", "value"}, {"key", "input"})
        if "value" in entry:
            assert isinstance(entry["value"], str)
            continue
        assert entry["input"].keys() <= {
            "name",
            "type",
            "description",
            "default",
            "options",
            "min",
            "max",
            "advanced",
        }
        assert {"name", "type", "description"} <= entry["input"].keys()
        kind, default = entry["input"]["type"], entry["input"]["default"]
        assert isinstance(default, {"string": str, "huggingface": str, "number": int}[kind])
        options = [option["value"] for option in entry["input"].get("options", [])]
        assert default in options if options else True
    tests = hub("tests.json")
    assert tests.keys() == {"tests", "config"}
    for test in tests["tests"]:
        assert test.keys() == {"name", "input", "timeout"}
        assert isinstance(test["input"], dict)
        assert isinstance(test["timeout"], int)
    assert tests["config"].keys() <= {"gpuTypeId", "gpuCount", "env", "allowedCudaVersions"}
    assert {"gpuTypeId", "gpuCount"} <= tests["config"].keys()
    assert all(entry.keys() == {"key", "value"} for entry in tests["config"]["env"])


def test_hub_s_jobs_are_of_both_forms() -> None:
    inputs = [test["input"] for test in hub("tests.json")["tests"]]
    assert [set(given) for given in inputs] == [{"prompt", "sampling_params"}, {"openai_route", "openai_input"}]


def test_hub_has_the_files_that_it_asks_for() -> None:
    """hub.json and tests.json in .runpod; handler.py, Dockerfile and README.md there or in the root."""
    for name in ("hub.json", "tests.json", "handler.py", "Dockerfile"):
        assert (HUB / name).is_file()
    assert (HUB.parent / "README.md").is_file()
    ours, theirs = ((folder / "Dockerfile").read_text().splitlines() for folder in (HUB.parent, HUB))
    assert theirs[2:] == [{"ARG EXTRAS=": "ARG EXTRAS=runpod"}.get(line, line) for line in ours]
    assert all(line.startswith("#") for line in theirs[:2])


def test_hub_s_handler_starts_the_queue_s_worker(tmp_path: Path) -> None:
    """Which says what it lacks outside RunPod."""
    (tmp_path / "config.json").write_text("{}")
    done = subprocess.run(
        [sys.executable, HUB / "handler.py", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("RUNPOD_")},
    )
    assert done.returncode == 2
    assert "--runpod-queue: RUNPOD_WEBHOOK_GET_JOB and" in done.stderr
