"""RunPod's side beside the rendering: its vLLM worker's variables, and the files of its hub."""

import json
from pathlib import Path
from typing import Any

import pytest

from pilotlight.deploy.gpus import RUNPOD
from pilotlight.device.cuda.driver import FLOOR
from pilotlight.errors import UsageError
from pilotlight.settings import FIELDS, RUNPOD_ENV, Settings, env_name, from_args

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
    }
    assert set(template) == {name for names in RUNPOD_ENV.values() for name in names}
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
    )
    # A flag wins over everything, and elsewhere than at RunPod the names mean nothing.
    assert from_args(["--max-num-seqs", "7"], WORKER | template).max_num_seqs == 7
    assert read(IMAGE | template) == read(IMAGE)


def test_another_model_is_not_offered_under_the_image_s_name() -> None:
    assert read(WORKER).served_model_name == ("built-in",)
    assert read(WORKER | {"MODEL_NAME": "a/b"}).served_model_name == ("a/b",)
    assert read(WORKER | {"MODEL_NAME": ""}) == read(IMAGE)


@pytest.mark.parametrize(
    ("word", "dtype"),
    [("auto", "auto"), ("half", "auto"), ("float16", "auto"), ("float", "float32"), ("float32", "float32")],
)
def test_dtypes_are_vllm_s(word: str, dtype: str) -> None:
    assert read(WORKER | {"DTYPE": word}).dtype == dtype


@pytest.mark.parametrize(("name", "text"), [("DTYPE", "int4"), ("KV_CACHE_DTYPE", "fp8_e5m2"), ("MAX_NUM_SEQS", "x")])
def test_what_is_not_there_is_refused(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"'{text}': expected"):
        read(WORKER | {name: text})


def hub(name: str) -> Any:
    return json.loads((HUB / name).read_text())


def test_hub_s_variables_are_ones_that_the_worker_reads() -> None:
    config = hub("hub.json")["config"]
    known = {name for names in RUNPOD_ENV.values() for name in names} | {env_name("runpod_queue")}
    asked = {entry["key"]: entry["input"]["default"] for entry in config["env"]}
    assert asked.keys() <= known
    values = {name: str(value) for name, value in asked.items()}
    defaults = Settings(model="/model", served_model_name=("built-in",), runpod_queue=True)
    assert read(WORKER | values) == defaults
    assert {entry["key"] for entry in hub("tests.json")["config"]["env"]} <= known
    assert set(RUNPOD_ENV) <= set(FIELDS)


def test_hub_names_pools_and_drivers_that_will_do() -> None:
    config = hub("hub.json")["config"]
    assert set(config["gpuIds"].split(",")) <= {offer.name for offer in RUNPOD}
    for versions in (config["allowedCudaVersions"], hub("tests.json")["config"]["allowedCudaVersions"]):
        numbers = [tuple(map(int, version.split("."))) for version in versions]
        assert numbers == sorted(numbers)
        assert all(major * 1000 + minor * 10 >= FLOOR for major, minor in numbers)


def test_hub_s_jobs_are_of_both_forms() -> None:
    inputs = [test["input"] for test in hub("tests.json")["tests"]]
    assert [set(given) for given in inputs] == [{"prompt", "sampling_params"}, {"openai_route", "openai_input"}]
