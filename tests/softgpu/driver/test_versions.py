"""Driver versions: which functions each has for the bindings to find, and which PTX it takes. Every one a process."""

import pytest

from .calls import child

# The bindings raise where the driver that they looked functions up in has none.
SCRIPT = """
found = {}
for name, arguments in {
    "cuGetProcAddress": (b"cuInit", 12000, 0),
    "cuFuncGetName": (0,),
    "cuFuncGetParamInfo": (0, 0),
    "cuEventElapsedTime": (0, 0),
    "cuStreamGetCaptureInfo": (0,),
    "cuCtxRecordEvent": (0, 0),
    "cuCheckpointProcessGetState": (0,),
}.items():
    try:
        getattr(driver, name)(*arguments)
        found[name] = True
    except RuntimeError as error:
        found[name] = False
start()
loads = {version: code("cuModuleLoadData", module(entry("store", STORE), version=version))
         for version in ("7.4", "8.0", "8.2", "8.4", "8.7", "9.0", "9.9")}
print(json.dumps([ok("cuDriverGetVersion"), found, loads]))
"""
SINCE = {
    "cuGetProcAddress": 12000,
    "cuFuncGetName": 12030,
    "cuFuncGetParamInfo": 12040,
    "cuEventElapsedTime": 2000,
    "cuStreamGetCaptureInfo": 11030,
    "cuCtxRecordEvent": 12050,
    "cuCheckpointProcessGetState": 12080,
}
NEWEST_PTX = {12000: 8.0, 12020: 8.2, 12040: 8.4, 12080: 8.7, 13000: 9.0}


@pytest.mark.parametrize("version", NEWEST_PTX)
def test_a_driver_has_what_its_version_brought(version: int) -> None:
    played, found, loads = child(SCRIPT, driver_version=version)
    assert played == version
    assert found == {name: since <= version for name, since in SINCE.items()}
    assert loads == {text: 0 if float(text) <= NEWEST_PTX[version] else 222 for text in loads}


LOOK_UP = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
pointer = ctypes.c_void_p
library.cuGetProcAddress_v2.argtypes = [ctypes.c_char_p, pointer, ctypes.c_int, ctypes.c_uint64, pointer]
def look_up(name, version):
    function, status = ctypes.c_void_p(), ctypes.c_int(-1)
    result = library.cuGetProcAddress_v2(name, ctypes.byref(function), version, 0, ctypes.byref(status))
    return [result, function.value is not None, status.value], function.value
def address(name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
answers = [look_up(b"cuMemAlloc", 3020)[0], look_up(b"cuMemAlloc", 2000)[0], look_up(b"cuNoSuchThing", 12080)[0],
           look_up(b"cuFuncGetName", 12030)[0], look_up(b"cuFuncGetName", 12000)[0]]
same = [look_up(b"cuEventElapsedTime", 12000)[1] == address("cuEventElapsedTime"),
        look_up(b"cuEventElapsedTime", 13000)[1] == address(NEWEST)]
stub = ctypes.CFUNCTYPE(ctypes.c_int)(look_up(b"cuMemAllocManaged", 6000)[1])()
library.softgpu_findings.restype = ctypes.c_char_p
print(json.dumps([answers, same, stub, [f["what"] for f in json.loads(library.softgpu_findings())]]))
"""
FOUND, NONE, TOO_OLD = [0, True, 0], [500, False, 1], [500, False, 2]


@pytest.mark.parametrize("version", [12000, 12080])
def test_functions_are_found_by_the_version_asked(version: int) -> None:
    newest = "cuEventElapsedTime_v2" if version >= 12080 else "cuEventElapsedTime"
    answers, same, stub, refused = child(f"NEWEST = {newest!r}\n" + LOOK_UP, driver_version=version)
    named = [FOUND, TOO_OLD] if version >= 12030 else [NONE, NONE]
    assert answers == [FOUND, TOO_OLD, NONE, *named]
    assert same == [True, True]
    assert (stub, refused) == (801, ["cuMemAllocManaged"])
