"""Images: PTX and its errors, cubins by architecture, and what the played driver refuses."""

import ctypes
import json
import struct
import time
from pathlib import Path

import pytest
from cuda.bindings import driver

from tests.softgpu.fixtures import Soft

from . import calls
from .calls import code, ok, start


def cubin(*entries: str, capability: int = 80, abi: int = 7) -> bytes:
    """The least of a cubin that says what it is for: an ELF header and a section a name."""
    names = ["", ".shstrtab", *(f".text.{entry}" for entry in entries)]
    strings = b"\0".join(name.encode() for name in names) + b"\0"
    offsets = [strings.index(name.encode() + b"\0") if name else 0 for name in names]
    headers = b""
    for name, offset in zip(names, offsets, strict=True):
        at = 64 if name == ".shstrtab" else 0
        headers += struct.pack("<IIQQQQIIQQ", offset, 3 if at else 1, 0, 0, at, len(strings), 0, 0, 1, 0)
    flags = capability if abi < 8 else capability << 8
    identity = b"\x7fELF" + bytes([2, 1, 1, 51, abi]) + bytes(7)
    rest = struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(strings), flags, 64, 0, 0, 64, len(names), 1)
    return identity + rest + strings + headers


def with_log(image: bytes) -> tuple[int, str, int]:
    """The code of loading it, the error log, and the log's size by what the driver leaves in place of the option."""
    log, loaded = ctypes.create_string_buffer(1024), ctypes.c_void_p()
    options = (ctypes.c_int * 2)(5, 6)  # CU_JIT_ERROR_LOG_BUFFER and its size
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 1024)
    library = ctypes.CDLL("libcuda.so.1")
    result = library.cuModuleLoadDataEx(ctypes.byref(loaded), image, 2, options, values)
    return result, log.value.decode(), values[1] or 0


def test_functions_and_variables_by_name(soft: Soft) -> None:
    start()
    text = calls.module(calls.entry("store", calls.STORE), before=".visible .global .align 4 .b8 table[32];")
    loaded = ok("cuModuleLoadData", text)
    assert code("cuModuleGetFunction", loaded, b"store") == 0
    assert code("cuModuleGetFunction", loaded, b"stored") == calls.NOT_FOUND
    address, size = ok("cuModuleGetGlobal", loaded, b"table")
    assert size == 32
    ok("cuMemsetD32", address, 5, 8)
    assert calls.read(int(address), 8) == [5] * 8
    assert code("cuModuleGetGlobal", loaded, b"chair") == calls.NOT_FOUND
    assert ok("cuModuleGetFunctionCount", loaded) == 1


def test_a_file(soft: Soft, tmp_path: Path) -> None:
    start()
    (tmp_path / "kernels.ptx").write_bytes(calls.KERNELS[:-1])
    loaded = ok("cuModuleLoad", str(tmp_path / "kernels.ptx").encode())
    assert code("cuModuleGetFunction", loaded, b"add") == 0
    assert code("cuModuleLoad", str(tmp_path / "none.ptx").encode()) == 301


def test_a_library(soft: Soft) -> None:
    start()
    library = ok("cuLibraryLoadData", calls.KERNELS, [], [], 0, [], [], 0)
    kernel = ok("cuLibraryGetKernel", library, b"store")
    out = calls.words(1)
    calls.launch(ok("cuKernelGetFunction", kernel), out, 3)
    assert calls.read(out) == [3]
    assert ok("cuKernelGetName", kernel) == b"store"
    ok("cuLibraryUnload", library)
    assert code("cuLibraryGetKernel", library, b"store") == calls.INVALID_HANDLE


class TestPtx:
    def test_what_is_wrong_is_told_with_its_line(self, soft: Soft) -> None:
        start()
        text = calls.module(calls.entry("store", "st.global.u32 [%rd1], %undeclared;"))
        line = text.decode().splitlines().index("st.global.u32 [%rd1], %undeclared;") + 1
        result, log, size = with_log(text)
        assert result == 218
        assert f"line {line};" in log
        assert "undeclared" in log
        assert log.startswith("ptxas")
        assert size == len(log) + 1

    def test_a_log_of_what_is_right_is_empty(self, soft: Soft) -> None:
        start()
        assert with_log(calls.KERNELS) == (0, "", 0)

    def test_no_ptx(self, soft: Soft) -> None:
        start()
        assert code("cuModuleLoadData", b"this is no image\0") == 218

    def test_an_opcode_that_is_not_built_is_refused_by_name(self, soft: Soft) -> None:
        start()
        text = calls.module(calls.entry("store", "pmevent 7;"))
        assert code("cuModuleLoadData", text) in (218, calls.NOT_SUPPORTED)
        soft.take_findings("unsupported")

    @pytest.mark.parametrize(("target", "result"), [("sm_80", 0), ("sm_86", 0), ("sm_89", 218), ("sm_90", 218)])
    def test_its_target_is_at_most_the_device(self, soft: Soft, target: str, result: int) -> None:
        soft.reset(capability=86)
        start()
        loaded, log, _ = with_log(calls.module(calls.entry("store", calls.STORE), target=target, version="8.0"))
        assert loaded == result
        assert ("higher than default SM version" in log) == (result != 0)

    def test_its_version_is_at_most_the_drivers(self, soft: Soft) -> None:
        soft.reset(driver_version=12080)
        start()
        loaded, log, _ = with_log(calls.module(calls.entry("store", calls.STORE), version="8.8"))
        assert loaded == 222
        assert "8.8" in log
        assert "8.7" in log

    def test_compiling_it_may_be_forbidden(self, soft: Soft, monkeypatch: pytest.MonkeyPatch) -> None:
        start()
        monkeypatch.setenv("CUDA_DISABLE_PTX_JIT", "1")
        assert code("cuModuleLoadData", calls.KERNELS) == 223
        monkeypatch.setenv("CUDA_DISABLE_PTX_JIT", "0")
        assert code("cuModuleLoadData", calls.KERNELS) == 0

    def test_the_compiler_may_be_missing(self, soft: Soft) -> None:
        soft.reset(ptx_jit_error=221)
        start()
        assert code("cuModuleLoadData", calls.KERNELS) == 221

    def test_loading_may_be_slow(self, soft: Soft) -> None:
        soft.reset(module_load_seconds=0.05)
        start()
        begin = time.perf_counter()
        ok("cuModuleLoadData", calls.KERNELS)
        assert time.perf_counter() - begin >= 0.05


class TestCubins:
    def begin(self, soft: Soft, directory: Path, **knobs: object) -> None:
        (directory / "other.ptx").write_bytes(calls.module(calls.entry("store", calls.ADD))[:-1])
        (directory / "kernels.ptx").write_bytes(calls.KERNELS[:-1])
        soft.reset(ptx_directory=directory, **knobs)
        start()

    def test_it_runs_as_the_ptx_with_its_entries(self, soft: Soft, tmp_path: Path) -> None:
        self.begin(soft, tmp_path)
        (store,) = calls.functions(cubin("twice", "store", "add"), "store")
        out = calls.words(1, 10)
        calls.launch(store, out, 4)
        assert calls.read(out) == [4]  # other.ptx would have added

    @pytest.mark.parametrize("abi", [7, 8])
    @pytest.mark.parametrize(
        ("device", "image", "result"),
        [
            *[(80, 80, 0), (86, 80, 0), (89, 86, 0), (103, 100, 0), (121, 120, 0)],
            *[(80, 86, 209), (90, 80, 209), (90, 89, 209), (120, 100, 209), (100, 103, 209)],
        ],
    )
    def test_it_runs_on_its_own_major_and_no_older_minor(
        self, soft: Soft, tmp_path: Path, abi: int, device: int, image: int, result: int
    ) -> None:
        self.begin(soft, tmp_path, capability=device)
        assert code("cuModuleLoadData", cubin("store", "add", "twice", capability=image, abi=abi)) == result

    def test_it_needs_no_compiler(self, soft: Soft, tmp_path: Path) -> None:
        self.begin(soft, tmp_path, ptx_jit_error=221)
        assert code("cuModuleLoadData", cubin("store", "add", "twice")) == 0

    def test_entries_without_ptx_are_refused(self, soft: Soft, tmp_path: Path) -> None:
        self.begin(soft, tmp_path)
        assert code("cuModuleLoadData", cubin("store", "add")) == calls.NOT_SUPPORTED
        assert len(soft.take_findings("unsupported")) == 1

    def test_fat_binaries_are_refused(self, soft: Soft) -> None:
        start()
        assert code("cuModuleLoadData", struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 0)) == calls.NOT_SUPPORTED
        assert len(soft.take_findings("unsupported")) == 1


class TestLoadedAgain:
    """What is large is decoded once a process; nobody may tell but by the time that it takes."""

    PADDING = "\n".join(f"// {number}" for number in range(10_000))

    def load(self, *entries: str, before: str = "") -> object:
        return ok("cuModuleLoadData", calls.module(*entries, before=f"{before}\n{self.PADDING}"))

    def test_after_a_reset(self, soft: Soft) -> None:
        for value in (3, 4):
            soft.reset()
            start()
            loaded = self.load(calls.entry("store", calls.STORE), before=".global .align 4 .u32 kUnused = 7;")
            out = calls.words(1)
            calls.launch(ok("cuModuleGetFunction", loaded, b"store"), out, value)
            assert calls.read(out) == [value]
            assert calls.read(int(ok("cuModuleGetGlobal", loaded, b"kUnused")[0])) == [7]
            assert soft.counters()["kernels"]["store"]["instructions"]["st.global"] == 1

    def test_one_load_outlives_another(self, soft: Soft) -> None:
        start()
        first, second = (self.load(calls.entry("store", calls.STORE)) for _ in range(2))
        kernel = ok("cuModuleGetFunction", second, b"store")
        ok("cuModuleUnload", first)
        out = calls.words(1)
        calls.launch(kernel, out, 5)
        assert calls.read(out) == [5]

    def test_each_load_has_variables_of_its_own(self, soft: Soft) -> None:
        start()
        body = "mov.u64 %rd1, kept;\n" + calls.ADD
        before = ".visible .global .align 4 .u32 kept = 10;"
        loads = [self.load(calls.entry("add", body), before=before) for _ in range(2)]
        for loaded, value in zip(loads, (1, 2), strict=True):
            calls.launch(ok("cuModuleGetFunction", loaded, b"add"), 0, value)
        values = [calls.read(int(ok("cuModuleGetGlobal", loaded, b"kept")[0])) for loaded in loads]
        assert values == [[11], [12]]

    def test_the_seed_decides_again_what_is_fused(self, soft: Soft) -> None:
        """(1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 by one fma and 0 by two roundings."""
        body = (
            ".reg .f32 %f<3>;\nmov.f32 %f1, 0f3F800800;\nmul.f32 %f2, %f1, %f1;\nadd.f32 %f2, %f2, 0fBF801000;\n"
            "st.global.f32 [%rd1], %f2;"
        )
        seen = set()
        for seed in range(16):
            soft.reset(seed=seed)
            start()
            out = calls.words(1)
            calls.launch(ok("cuModuleGetFunction", self.load(calls.entry("store", body)), b"store"), out, 0)
            seen.add(calls.read(out)[0])
        assert seen == {0, 0x33800000}

    def test_files_that_change_are_read_again(self, soft: Soft, tmp_path: Path) -> None:
        register = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS
        for value, registers in ((3, 40), (45, 8)):
            text = calls.module(calls.entry("store", f"mov.u32 %r1, {value};\n" + calls.STORE))
            (tmp_path / "kernels.ptx").write_bytes(text[:-1])
            figures = {"architectures": {"sm_80": {"registers": registers}}}
            manifest = {"modules": {"kernels": {"entries": {"store": figures}}}}
            (tmp_path / "manifest.json").write_text(json.dumps(manifest))
            soft.reset(ptx_directory=tmp_path)
            start()
            (store,) = calls.functions(cubin("store"), "store")
            out = calls.words(1)
            calls.launch(store, out, 0)
            assert calls.read(out) == [value]
            assert ok("cuFuncGetAttribute", register, store) == registers
