"""`pilotlight build kernels`: what it writes is what the compilers say, and nothing else is left behind."""

import ctypes
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest

from pilotlight.build import kernel_compilers, kernels
from pilotlight.build.kernel_compilers import ARCHITECTURES, Cubin, program
from pilotlight.build.kernels import build_kernels, command, stale_modules
from pilotlight.device.cuda import images
from pilotlight.errors import KernelError, UnavailableError, UsageError
from tests.build.kernel_sources import COPY, INDEXED, kernel, write_sources

ROOT = Path(__file__).parents[2]


def manifest(output: Path) -> dict[str, Any]:
    return json.loads((output / "manifest.json").read_bytes())  # type: ignore[no-any-return]


def contents(output: Path) -> dict[str, bytes]:
    return {str(file.relative_to(output)): file.read_bytes() for file in output.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output for two modules with a header between them, one with shared memory."""
    source = write_sources(
        tmp_path_factory.mktemp("built") / "kernels",
        copy=COPY,
        twice='#include "twice.cuh"\n#include <cuda_bf16.h>\n'
        + kernel(
            "__shared__ float held[96];\nheld[threadIdx.x] = twice(x[threadIdx.x]);\n__syncthreads();\n"
            "y[threadIdx.x] = held[63 - threadIdx.x] + __bfloat162float(__float2bfloat16(held[0]));",
            "twice",
        ),
        twice_cuh="static __device__ float twice(float x) { return 2 * x; }\n",
    )
    output = source.parent / "ptx"
    assert build_kernels(source, output) == ["copy", "twice"]
    return output


# --- what is written -----------------------------------------------------------------------------------------


def test_every_architecture_has_an_image_of_every_module(built: Path) -> None:
    expected = {f"{architecture}/{name}.cubin" for architecture in ARCHITECTURES for name in ("copy", "twice")}
    assert set(contents(built)) == expected | {"copy.ptx", "twice.ptx", "manifest.json"}
    for architecture in ARCHITECTURES:
        image = (built / architecture / "copy.cubin").read_bytes()
        # of the ELF header: its magic number, and e_machine 190 (EM_CUDA)
        assert image[:4] == b"\x7fELF"
        assert int.from_bytes(image[18:20], "little") == 190


def test_manifest_has_the_figures_of_the_images(built: Path) -> None:
    """By another reader of the cubins than the one that wrote them."""
    for module, document in manifest(built)["modules"].items():
        for architecture in ARCHITECTURES:
            file = built / architecture / f"{module}.cubin"
            said = subprocess.run(
                [program("cuobjdump"), "--dump-resource-usage", file], capture_output=True, text=True, check=True
            ).stdout
            for entry, figures in document["entries"].items():
                found = re.search(rf"Function {entry}:\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", said)
                assert found is not None
                assert figures["architectures"][architecture] == {
                    "registers": int(found[1]),
                    "spill_bytes": 0,
                    "stack_bytes": int(found[2]),
                    # from sm_90 on the system takes 1 KB of its own, which one tool counts and the other does not
                    "static_shared_bytes": int(found[3]) % 1024,
                }
            assert document["cubins"][architecture]["bytes"] == file.stat().st_size
    entry = manifest(built)["modules"]["twice"]["entries"]["twice"]
    assert entry["static_shared_bytes"] == 96 * 4
    assert (entry["max_threads"], entry["min_blocks"]) == (64, 1)
    entry = manifest(built)["modules"]["copy"]["entries"]["copy"]
    assert (entry["max_threads"], entry["min_blocks"], entry["static_shared_bytes"]) == (256, 4, 0)


def test_manifest_names_the_compilers(built: Path) -> None:
    done = subprocess.run([program("ptxas"), "--version"], capture_output=True, text=True, check=True)
    assert f"V{manifest(built)['compilers']['ptxas']}\n" in done.stdout
    assert f"V{manifest(built)['compilers']['nvrtc']}\n" in (built / "copy.ptx").read_text()


def test_ptx_is_of_the_lowest_version_and_names_no_place_of_this_machine(built: Path) -> None:
    for name in ("copy", "twice"):
        text = (built / f"{name}.ptx").read_text()
        assert ".version 7.4\n.target sm_80\n" in text
        document = manifest(built)["modules"][name]
        assert (document["version"], document["target"]) == ("7.4", "sm_80")
        assert "/tmp" not in text
        assert str(built.parent) not in text
        assert "site-packages" not in text
    files = re.findall(r'\.file\s+\d+ "(.*)"', text)
    assert sorted(files) == ["kernels/include/twice.cuh", "kernels/twice.cu"]


def test_version_is_what_the_instructions_need(tmp_path: Path) -> None:
    widened = 'int r; asm("szext.wrap.s32 %0, %1, 7;" : "=r"(r) : "r"(n)); y[0] = r;'  # since PTX 7.6
    build_kernels(write_sources(tmp_path / "k", wide=kernel(widened)), tmp_path / "ptx")
    assert manifest(tmp_path / "ptx")["modules"]["wide"]["version"] == "7.6"


def test_parameters_lie_where_a_c_compiler_puts_them(tmp_path: Path) -> None:
    class Pair(ctypes.Structure):
        _fields_ = (("first", ctypes.c_int), ("second", ctypes.c_longlong))

    class Parameters(ctypes.Structure):
        _fields_ = (
            ("address", ctypes.c_void_p),
            ("byte", ctypes.c_uint8),
            ("short", ctypes.c_int16),
            ("flag", ctypes.c_bool),
            ("count", ctypes.c_int),
            ("pair", Pair),
            ("scale", ctypes.c_float),
            ("precise", ctypes.c_double),
            ("last", ctypes.c_uint16),  # a half
        )

    source = "#include <cuda_fp16.h>\nstruct Pair { int first; long long second; };\n" + kernel(
        "*address = byte + number + flag + count + pair.second + scale + precise + __half2float(last);",
        parameters="float* address, unsigned char byte, short number, bool flag, int count, Pair pair, float scale,"
        "double precise, half last",
    )
    build_kernels(write_sources(tmp_path / "k", trial=source), tmp_path / "ptx")
    found = manifest(tmp_path / "ptx")["modules"]["trial"]["entries"]["trial"]["parameters"]
    fields = [getattr(Parameters, name) for name, *_ in Parameters._fields_]
    assert [(item["offset"], item["bytes"]) for item in found] == [(field.offset, field.size) for field in fields]
    assert [item["type"] for item in found] == ["u64", "u8", "u16", "u8", "u32", "b8", "f32", "f64", "b8"]


def test_output_is_the_same_wherever_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = "static __constant__ float table[3] = {1, 2, 3};\n"
    function = "static __device__ __noinline__ float f(int i) { return table[i]; }\n"
    source = table + function + kernel("y[0] = f(n) * x[0];")
    for place in ("one", "two/deeper"):
        write_sources(tmp_path / place / "src", trial=source)
        monkeypatch.chdir(tmp_path / place)
        build_kernels(Path("src"), Path("out"))
    assert contents(tmp_path / "one" / "out") == contents(tmp_path / "two" / "deeper" / "out")


# --- only what changed ---------------------------------------------------------------------------------------


def test_a_second_build_makes_what_changed_and_no_more(tmp_path: Path) -> None:
    using = '#include "scale.cuh"\n' + kernel("y[0] = kScale;", "using_it")
    deeper = '#include "value.cuh"\nconstexpr float kScale = kValue;\n'
    source = write_sources(tmp_path / "k", copy=COPY, uses=using, scale_cuh=deeper, value_cuh="#define kValue 2.0f\n")
    output = tmp_path / "ptx"
    assert build_kernels(source, output) == ["copy", "uses"]
    first = contents(output)
    assert build_kernels(source, output) == []
    assert contents(output) == first
    write_sources(source, value_cuh="#define kValue 3.0f\n")  # included by what is included
    assert build_kernels(source, output) == ["uses"]
    second = contents(output)
    assert second["uses.ptx"] != first["uses.ptx"]
    assert second["copy.ptx"] == first["copy.ptx"]
    (source / "uses.cu").unlink()
    assert build_kernels(source, output) == []
    assert set(contents(output)) == {name for name in first if "uses" not in name}
    assert list(manifest(output)["modules"]) == ["copy"]


def test_missing_images_are_assembled_from_the_text_that_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_sources(tmp_path / "k", copy=COPY), tmp_path / "ptx"
    build_kernels(source, output)
    first = contents(output)
    (output / "sm_90" / "copy.cubin").unlink()
    (output / "sm_80" / "copy.cubin").write_bytes(b"another")
    monkeypatch.setattr(kernels, "compile_to_ptx", lambda *_: pytest.fail("compiled anew"))
    assert build_kernels(source, output) == ["copy"]
    assert contents(output) == first


def test_changed_text_is_compiled_anew(tmp_path: Path) -> None:
    source, output = write_sources(tmp_path / "k", copy=COPY), tmp_path / "ptx"
    build_kernels(source, output)
    first = contents(output)
    (output / "copy.ptx").write_text((output / "copy.ptx").read_text().replace("ld.global", "ld.volatile.global"))
    assert build_kernels(source, output) == ["copy"]
    assert contents(output) == first


def test_named_modules_alone_are_looked_at(tmp_path: Path) -> None:
    source, output = write_sources(tmp_path / "k", copy=COPY), tmp_path / "ptx"
    build_kernels(source, output)
    write_sources(source, copy="broken", other=kernel("y[0] = 1;", "other"))
    assert build_kernels(source, output, ["other"]) == ["other"]
    assert set(manifest(output)["modules"]) == {"copy", "other"}
    assert stale_modules(source, output) == ["copy"]
    (output / "other.ptx").unlink()
    write_sources(source, copy=COPY)
    assert build_kernels(source, output, ["copy"]) == []
    assert set(manifest(output)["modules"]) == {"copy"}  # what is not whole does not stay
    assert stale_modules(source, output) == ["other"]
    with pytest.raises(UsageError, match=r"has no third\.cu$"):
        build_kernels(source, output, ["third"])


def test_builds_at_the_same_time_wait_for_each_other(tmp_path: Path) -> None:
    source, output = write_sources(tmp_path / "k", copy=COPY, other=kernel("y[0] = 1;", "other")), tmp_path / "ptx"
    build = [sys.executable, "-m", "pilotlight", "build", "kernels", "--source", str(source), "-o", str(output)]
    running = [subprocess.Popen([*build, name], stdout=subprocess.DEVNULL) for name in ("copy", "other")]
    assert [process.wait() for process in running] == [0, 0]
    assert set(manifest(output)["modules"]) == {"copy", "other"}
    assert stale_modules(source, output) == []


# --- nothing half-written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("step", ["assemble", "write_document"])
def test_interrupted_build_leaves_all_as_it_was(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = write_sources(tmp_path / "k", copy=COPY), tmp_path / "ptx"
    build_kernels(source, output)
    first = contents(output)
    write_sources(source, copy=COPY.replace("256", "128"))
    original, calls = getattr(kernels, step), iter(range(100))

    def fails_the_third_time(*arguments: Any) -> Any:
        if next(calls) == 2:
            raise error
        return original(*arguments)

    monkeypatch.setattr(kernels, step, fails_the_third_time)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UnavailableError):
        build_kernels(source, output)
    assert contents(output) == first
    assert sorted(file.name for file in tmp_path.iterdir()) == ["k", "ptx"]


def test_failed_first_build_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KernelError):
        build_kernels(write_sources(tmp_path / "k", copy="broken"), tmp_path / "ptx")
    assert [file.name for file in tmp_path.iterdir()] == ["k"]


def test_another_directory_is_not_overwritten(tmp_path: Path) -> None:
    source = write_sources(tmp_path / "k", copy=COPY)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(UsageError, match="holds no kernels; choose another directory"):
        build_kernels(source, tmp_path / "mine")
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


# --- what is refused -----------------------------------------------------------------------------------------


def refusal(tmp_path: Path, **sources: str) -> str:
    with pytest.raises(KernelError) as caught:
        build_kernels(write_sources(tmp_path / "k", **sources), tmp_path / "ptx")
    return str(caught.value)


def test_compile_error_names_file_and_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, trial=kernel("y[0] = 1;\ny[1] = missing;")).startswith(
        'kernels/trial.cu:3: error: identifier "missing" is undefined'
    )


def test_compile_error_in_a_header_names_the_header(tmp_path: Path) -> None:
    said = refusal(
        tmp_path, trial='#include "bad.cuh"\n' + kernel("y[0] = 1;"), bad_cuh="\nint f() { return missing; }\n"
    )
    assert said.startswith("kernels/include/bad.cuh:2: error: ")


def test_warning_is_an_error(tmp_path: Path) -> None:
    said = refusal(tmp_path, trial=kernel("int unused;\ny[0] = 1;"))
    assert said.startswith('kernels/trial.cu:2: warning #177-D: variable "unused" was declared but never referenced')


def test_ptx_that_does_not_assemble_names_the_source_line(tmp_path: Path) -> None:
    said = refusal(tmp_path, trial=kernel('y[0] = 1;\nasm volatile("no.such.thing;");'))
    assert said.startswith("kernels/trial.cu:3: ptxas for ")


def test_module_without_an_entry_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, trial="__device__ int f() { return 1; }\n") == "kernels/trial.cu: has no entry"


def test_entry_without_launch_bounds_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, trial='extern "C" __global__ void trial(float* y) { y[0] = 1; }')
    assert said == "kernels/trial.cu: trial has no __launch_bounds__"


def test_spill_is_refused(tmp_path: Path) -> None:
    """128 values that live through a barrier do not go into the 64 registers that 1,024 threads leave each."""
    loop = "#pragma unroll\nfor (int i = 0; i < 128; ++i)"
    source = kernel(
        f"float v[128];\n{loop} v[i] = x[i * 1024 + threadIdx.x];\n"
        f"__syncthreads();\n{loop} y[i * 1024 + threadIdx.x] = v[127 - i] * v[i];"
    ).replace("(64)", "(1024, 1)")
    said = refusal(tmp_path, trial=source)
    assert re.match(r"kernels/trial\.cu: trial on sm_80 spills \d+ bytes at 64 registers$", said.splitlines()[0])


def test_stack_is_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, trial=kernel(INDEXED))
    assert said.startswith("kernels/trial.cu: trial on sm_80 has 40 bytes on the stack: ")


def test_promise_that_an_architecture_cannot_keep_is_refused(tmp_path: Path) -> None:
    """Eight blocks of 256 threads fit 2,048 threads an SM, but not the 1,536 of sm_86."""
    said = refusal(tmp_path, trial=COPY.replace("256, 4", "256, 8"))
    assert "sm_86" in said


def test_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    said = refusal(tmp_path, first=COPY, second=COPY)
    assert said == "kernels/second.cu: copy is an entry of kernels/first.cu too"


def test_too_large_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = kernels.assemble

    def padded(architecture: str, module: str, text: str) -> Cubin:
        cubin = original(architecture, module, text)
        return Cubin(cubin.image + bytes(7_100_000), cubin.usage)

    monkeypatch.setattr(kernels, "assemble", padded)
    assert refusal(tmp_path, copy=COPY) == "the cubins have 42.6 MB in all, over 40 MB"


def test_missing_compiler_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(kernel_compilers, "distribution", missing)
    kernel_compilers._wheel.cache_clear()
    with pytest.raises(
        UnavailableError, match=r"^nvrtc needs the kernels extra: pip install 'pilotlight\[kernels\]'"
    ):
        build_kernels(write_sources(tmp_path / "k", copy=COPY), tmp_path / "ptx")
    assert [file.name for file in tmp_path.iterdir()] == ["k"]


# --- what is committed ---------------------------------------------------------------------------------------


def test_committed_ptx_fits_the_sources() -> None:
    assert stale_modules(ROOT / "kernels", ROOT / "ptx") == [], "run scripts/build_kernels and commit ptx/"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_committed_ptx_is_what_compiling_gives(tmp_path: Path) -> None:
    build_kernels(ROOT / "kernels", tmp_path / "ptx")
    for name, content in contents(tmp_path / "ptx").items():
        if not name.startswith("sm_"):
            assert (ROOT / "ptx" / name).read_bytes() == content, f"ptx/{name}: run scripts/build_kernels"


def test_stale_modules_are_told(tmp_path: Path, built: Path) -> None:
    output = tmp_path / "ptx"
    source = write_sources(tmp_path / "k", a=kernel("y[0] = 1;", "a"), b=kernel("y[0] = 1;", "b"))
    write_sources(source, c=kernel("y[0] = 1;", "c"), d=kernel("y[0] = 1;", "d"))
    build_kernels(source, output)
    assert stale_modules(source, output) == []
    (source / "a.cu").unlink()
    write_sources(source, b=kernel("y[0] = 2;", "b"), e=COPY)
    (output / "c.ptx").write_text((output / "c.ptx").read_text() + "\n")
    assert stale_modules(source, output) == ["a", "b", "c", "e"]


# --- the command ---------------------------------------------------------------------------------------------


def test_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--source", str(write_sources(tmp_path / "k", copy=COPY)), "-o", str(tmp_path / "ptx")]
    assert command(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'ptx'}: compiled copy; 0.0 MB of cubins\n"
    assert command(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'ptx'}: up to date; 0.0 MB of cubins\n"


def test_checkout_finds_its_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert images.directory() == ROOT / "ptx"
    monkeypatch.setattr(images, "_PACKAGE", tmp_path / "pilotlight")
    with pytest.raises(UnavailableError, match=r"pilotlight/ptx: no compiled kernels there"):
        images.directory()
