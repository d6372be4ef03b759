"""Small CUDA sources for the tests of the kernels' build."""

from pathlib import Path

COPY = """
extern "C" __global__ __launch_bounds__(256, 4) void copy(const float* x, float* y, int n) {
  const int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = x[i];
}
"""
# The body of a kernel that needs a stack: its array has an index that is known at run time alone.
INDEXED = """
float v[9];
for (int i = 0; i < 9; ++i) v[i] = x[i];
for (int i = 0; i < n; ++i) v[(int)x[i]] = i;
y[0] = v[n];
"""


def write_sources(directory: Path, **sources: str) -> Path:
    """`copy=COPY` becomes copy.cu; `scale_cuh=...` the header include/scale.cuh. Returns the directory."""
    (directory / "include").mkdir(parents=True, exist_ok=True)
    for name, source in sources.items():
        header = name.endswith("_cuh")
        file = directory / "include" / f"{name[:-4]}.cuh" if header else directory / f"{name}.cu"
        file.write_text(source)
    return directory


def kernel(body: str, name: str = "trial", parameters: str = "const float* x, float* y, int n") -> str:
    return f'extern "C" __global__ __launch_bounds__(64) void {name}({parameters}) {{\n{body}\n}}\n'
