"""CUDA C++ to PTX for tests that bring their own source: NVRTC alone, without the package's build."""

from functools import cache

from cuda.bindings import nvrtc

OPTIONS = (b"--gpu-architecture=compute_80", b"-lineinfo", b"--std=c++17", b"-default-device")


@cache
def compile_source(source: str, *options: str) -> str:
    """The PTX of one source that includes nothing; the compiler's words are the error where it refuses."""
    made, program = nvrtc.nvrtcCreateProgram(source.encode(), b"programs.cu", 0, [], [])
    assert made == nvrtc.nvrtcResult.NVRTC_SUCCESS, made
    given = [*OPTIONS, *(option.encode() for option in options)]
    (done,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
    if done != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        said = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
        nvrtc.nvrtcGetProgramLog(program, said)
        raise AssertionError(said.decode(errors="replace"))
    text = bytearray(nvrtc.nvrtcGetPTXSize(program)[1])
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.rstrip(b"\0").decode()
