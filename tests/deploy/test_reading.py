"""What a description may not say: one line with the file, the line, the field and what was expected."""

import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from pilotlight.deploy.command import TARGETS
from pilotlight.deploy.description import schema
from pilotlight.deploy.reading import read_deployment
from pilotlight.deploy.yaml_file import read
from pilotlight.errors import EXIT_USAGE, UsageError

VALIDATOR = jsonschema.Draft202012Validator(schema())
HEAD = "name: a\nimage: b/c:1\ngpu:\n  memory: 24\n"


def refused(tmp_path: Path, text: str, target: str = "runpod") -> str:
    """The message, without the folder."""
    file = tmp_path / "d.yml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        TARGETS[target](read_deployment(file))
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{tmp_path}/")


# What the JSON Schema refuses too, so that an editor marks it.
STRUCTURE = [
    ("", "d.yml:1: is empty; expected name, image and gpu"),
    ("- a\n", "d.yml:1: expected a mapping, found a list; see docs/deploy.md"),
    ("name: a\ngpu: {memory: 24}\n", "d.yml:1: image: is missing; image in a registry that the platform can reach"),
    (HEAD + "scalling:\n  min: 0\n", "d.yml:5: scalling: is no field here; did you mean scaling?"),
    (HEAD + "scaling:\n  min: 0\n  maxx: 2\n", "d.yml:7: scaling.maxx: is no field here; did you mean max?"),
    (
        HEAD + "runpod:\n  excluded_types: [NVIDIA L4, '-']\n",
        "d.yml:6: runpod.excluded_types[1]: expected text, found '-'; names of GPU types to leave out",
    ),
    (HEAD + "scaling:\n  max: 0\n", "d.yml:6: scaling.max: expected a whole number >= 1, found 0; most replicas"),
    (HEAD + "scaling:\n  max: 2.5\n", "d.yml:6: scaling.max: expected a whole number, found 2.5; most replicas"),
    (HEAD + "scaling: 3\n", "d.yml:5: scaling: expected a mapping, found 3; how many replicas, and when"),
    (
        HEAD + "  min_cuda: 12.8\n",
        'd.yml:5: gpu.min_cuda: expected text, found 12.8; oldest CUDA version of the driver, in quotes: "12.2"',
    ),
    (
        HEAD + "  generations:\n    - ada\n    - turing\n",
        "d.yml:7: gpu.generations[1]: expected one of ampere, ada, hopper, blackwell, found 'turing'; "
        "generations that will do (default: all that there are kernels for)",
    ),
    (
        "name: a\nimage: b\ngpu:\n  holds:\n    snapshot: 3\n",
        "d.yml:4: gpu.holds.kv_cache: is missing; GB of KV cache beside them",
    ),
    (
        HEAD + "runpod:\n  flashboot: on\n",
        "d.yml:6: runpod.flashboot: expected one of OFF, FLASHBOOT, PRIORITY_FLASHBOOT, found 'on'; "
        "cold starts from a kept state",
    ),
    (
        HEAD + "modal:\n  proxy_auth: yes\n",
        "d.yml:6: modal.proxy_auth: expected true or false, found 'yes'; "
        "requests must carry Modal-Key and Modal-Secret",
    ),
    (
        HEAD + "health:\n  ready: /ping\n",  # any 2xx is ready on most platforms, and 204 is not
        "d.yml:6: health.ready: expected one of /health, /v1/health/ready, found '/ping'; "
        "path that answers 200 once requests are served",
    ),
    (
        "name: A_b\nimage: b\ngpu: {memory: 24}\n",
        "d.yml:1: name: expected text, found 'A_b'; name of the service: lower-case letters, digits and dashes",
    ),
    (
        HEAD + "secrets:\n  GOOD: fine\n  BAD: Not Fine\n",
        "d.yml:7: secrets.BAD: expected text, found 'Not Fine'; "
        "variable -> name of the platform's secret that holds its value",
    ),
    (
        HEAD + "knative:\n  node_selector:\n    a/b: true\n",
        "d.yml:7: knative.node_selector.a/b: expected text, found true; "
        "labels of the nodes; the cluster must allow kubernetes.podspec-nodeselector",
    ),
]


@pytest.mark.parametrize(("text", "said"), STRUCTURE)
def test_wrong_field_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text) == said
    value = read(tmp_path / "d.yml", frozenset()).value if text else None
    assert not VALIDATOR.is_valid(value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nname: b\n", "d.yml:2: name stands a second time; first in line 1"),
        ("name: [a\n", "d.yml:2: is not YAML: expected ',' or ']', but got '<stream end>'"),
        ("name: a\n  image: b\n", "d.yml:2: is not YAML: mapping values are not allowed here"),
        ("name: &a b\nimage: b\ngpu: &g {memory: 1}\nhost: *g\n", "d.yml:4: host: is an alias; write the value out"),
        ("? [a, b]\n: 1\n", "d.yml:1: a key is no word"),
        (HEAD + '"x` - at `$.scaling.min": 1\n', "d.yml:5: a key is no word"),
        (HEAD + 'knative:\n  "x` - at `$.a": 1\n', "d.yml:6: a key is no word"),
        (
            "name: !!python/object:os.system x\n",
            "d.yml:1: name: has the tag tag:yaml.org,2002:python/object:os.system",
        ),
        ("name: |\n  a\n", "d.yml:1: name: has a line break or another character that does not print"),
        ("name: !!int abc\n", "d.yml:1: name: 'abc' is no int"),
        (HEAD + "environment:\n  A:\n", 'd.yml:6: environment.A: has no value; expected text, "" for none'),
    ],
)
def test_what_is_no_plain_yaml_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nimage: b\ngpu: {}\n", "d.yml:3: gpu: expected one of memory and holds"),
        (
            "name: a\nimage: b\ngpu:\n  memory: 24\n  holds: {snapshot: 1, kv_cache: 1}\n",
            "d.yml:3: gpu: expected one of memory and holds",
        ),
        (HEAD + "  generations: []\n", "d.yml:5: gpu.generations: is empty; leave it out for every generation"),
        (HEAD + "scaling:\n  min: 4\n", "d.yml:6: scaling.min: 4 is more than scaling.max, 3"),
        (
            HEAD + "scaling:\n  concurrency: 33\n",
            "d.yml:6: scaling.concurrency: 32 sequences run at once at a replica (PILOTLIGHT_MAX_NUM_SEQS), and "
            "scaling.concurrency is 33; it must not be more",
        ),
        (
            HEAD + "environment:\n  PILOTLIGHT_MAX_NUM_SEQS: 8\n",
            "d.yml:6: environment.PILOTLIGHT_MAX_NUM_SEQS: 8 sequences run at once",
        ),
        (
            HEAD + "environment:\n  PILOTLIGHT_MAX_NUM_SEQ: 8\n",
            "d.yml:6: environment.PILOTLIGHT_MAX_NUM_SEQ: is no variable of the server; did you mean "
            "PILOTLIGHT_MAX_NUM_SEQS? (docs/flags.md has them all)",
        ),
        (
            HEAD + "environment:\n  A: b\n  PILOTLIGHT_MAX_MODEL_LEN: long\n",
            "d.yml:7: environment.PILOTLIGHT_MAX_MODEL_LEN: --max-model-len (or PILOTLIGHT_MAX_MODEL_LEN) 'long': "
            "expected a whole number",
        ),
        (
            HEAD + "environment:\n  PILOTLIGHT_API_KEY: sk-123\n",
            "d.yml:6: environment.PILOTLIGHT_API_KEY: looks like a secret; name the platform's secret that holds it",
        ),
        (
            HEAD + "environment:\n  HF_TOKEN: hf_123\n",
            "d.yml:6: environment.HF_TOKEN: looks like a secret; name the platform's secret that holds it under ",
        ),
        (HEAD + "environment:\n  PORT: 80\n", "d.yml:6: environment.PORT: is set from port; leave it out here"),
        (
            HEAD + "environment:\n  PILOTLIGHT_STARTUP_TIMEOUT: 9\n",
            "d.yml:6: environment.PILOTLIGHT_STARTUP_TIMEOUT: is set from timeouts.startup; leave it out here",
        ),
        (HEAD + "environment:\n  A-B: c\n", "d.yml:6: environment.A-B: is no name of a variable; expected letters"),
        (
            HEAD + "secrets:\n  PILOTLIGHT_API_KY: c\n",  # the server would ask for no key
            "d.yml:6: secrets.PILOTLIGHT_API_KY: is no variable of the server; did you mean PILOTLIGHT_API_KEY?",
        ),
        (HEAD + "environment:\n  DEPLOY_FORM: x\n", "d.yml:6: environment.DEPLOY_FORM: is set from modal.form; "),
        (
            HEAD + "compose:\n  address: 1.2.3\n",
            "d.yml:6: compose.address: '1.2.3' is no address; expected one as 127.0.0.1 or [::1]",
        ),
        (HEAD + "compose:\n  address: '[::1::2]'\n", "d.yml:6: compose.address: '[::1::2]' is no address; expected"),
        (HEAD + "secrets:\n  1A: c\n", "d.yml:6: secrets.1A: is no name of a variable; expected letters"),
        (
            HEAD + "environment:\n  A: b\nsecrets:\n  A: c\n",
            "d.yml:8: secrets.A: stands under environment too",
        ),
    ],
)
def test_fields_that_do_not_go_together_are_refused(tmp_path: Path, text: str, said: str) -> None:
    assert refused(tmp_path, text).startswith(said)


@pytest.mark.parametrize(
    ("target", "text", "said"),
    [
        (
            "cloudrun",
            HEAD.replace("24", "25") + "  generations: [ampere, ada, hopper]\n",
            "d.yml:3: gpu: needs 25 GB on ampere or ada or hopper; Cloud Run has nvidia-l4 (24 GB, ada), "
            "nvidia-rtx-pro-6000 (96 GB, blackwell)",
        ),
        ("runpod", HEAD.replace("24", "181"), "d.yml:3: gpu: needs 181 GB on ampere or ada or hopper or blackwell; "),
        (
            "modal",
            "name: a\nimage: b\ngpu:\n  holds: {snapshot: 150, kv_cache: 10.1}\n",  # (150 + 10.1 + 2) / 0.9
            "d.yml:3: gpu: needs 180.1 GB on ",
        ),
        (
            "runpod",
            HEAD + "secrets:\n  A: runpod-a\n",
            "d.yml:6: secrets.A: RunPod keeps names such as runpod-a, from runpod on, to itself",
        ),
        (
            "cloudrun",
            HEAD + "timeouts:\n  startup: 1801\n",
            "d.yml:6: timeouts.startup: Cloud Run lets a replica start for 1800 seconds",
        ),
        (
            "cloudrun",
            HEAD + "timeouts:\n  request: 3601\n",
            "d.yml:6: timeouts.request: Cloud Run lets a request run for 3600 seconds",
        ),
        (
            "cloudrun",
            HEAD + "host:\n  memory: 33\n",
            "d.yml:5: host: Cloud Run couples nvidia-l4 with 8 CPUs and 32 GiB at most",
        ),
    ],
)
def test_what_a_platform_cannot_do_is_refused(tmp_path: Path, target: str, text: str, said: str) -> None:
    assert refused(tmp_path, text, target).startswith(said)


def test_missing_and_endless_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path}/x.yml: cannot be read: No such file or directory")):
        read_deployment(tmp_path / "x.yml")
    with pytest.raises(UsageError, match="/dev/zero: is larger than 1 MB"):
        read_deployment(Path("/dev/zero"))
    (tmp_path / "deep.yml").write_text("[" * 1500)
    with pytest.raises(UsageError, match="is not YAML"):
        read_deployment(tmp_path / "deep.yml")
    (tmp_path / "bytes.yml").write_bytes(b"name: \xff\n")
    with pytest.raises(UsageError, match="is not YAML"):
        read_deployment(tmp_path / "bytes.yml")


def test_section_of_comments_alone_is_none(tmp_path: Path) -> None:
    file = tmp_path / "d.yml"
    file.write_text(HEAD + "modal:\n  # gpus: [L4]\nscaling:\n")
    assert read_deployment(file).description.modal.gpus == ()


def test_variables_are_the_text_that_stands_there(tmp_path: Path) -> None:
    file = tmp_path / "d.yml"
    file.write_text(HEAD + "environment: {A: 0.50, B: 1e3, C: true, D: off, E: 010, F: 'null', G: 1:30, H: ''}\n")
    assert read_deployment(file).description.environment == {
        "A": "0.50", "B": "1e3", "C": "true", "D": "off", "E": "010", "F": "null", "G": "1:30", "H": "",
    }  # fmt: skip


def test_command_fails_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "serverless.yml").write_text(HEAD + "scaling:\n  max: 0\n")
    done = subprocess.run(
        [sys.executable, "-m", "pilotlight", "deploy", "render", "--target", "runpod"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr == (
        "pilotlight: serverless.yml:6: scaling.max: expected a whole number >= 1, found 0; most replicas\n"
    )


def test_the_refusal_that_the_page_shows_is_the_examples(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    said = refused(tmp_path, (root / "serverless.yml").read_text().replace("  max: 3", "  max: 0"))
    page = " ".join((root / "docs" / "deploy.md").read_text().split())
    assert f"`{said.replace('d.yml', 'serverless.yml')}`" in page


def test_without_the_extra_it_says_which_is_missing(tmp_path: Path) -> None:
    code = "import sys; sys.modules['yaml'] = None; from pilotlight.cli import main; main(['deploy', 'render'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "pilotlight: `pilotlight deploy` needs the deploy extra: pip install 'pilotlight[deploy]'\n"
