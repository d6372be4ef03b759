"""The wheel's tag: this machine's platform if the wheel carries the CPU library, else any platform.

Apart because setuptools alone imports it, as pyproject.toml says, when the package itself is built.
"""

from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):  # type: ignore[misc]  # setuptools has no types
    def finalize_options(self) -> None:
        """The library, where `pilotlight build native` has left it, is package data, and counts as an extension."""
        built = any(Path("kernels/cpu").glob("*.so"))
        self.distribution.has_ext_modules = lambda: built
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        """No binary interface of Python's is used: the library is loaded through ctypes."""
        return "py3", "none", super().get_tag()[2]
