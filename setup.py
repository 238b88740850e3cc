"""Settings that pyproject.toml cannot express: folders of the repository that a wheel has inside podium."""

from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py

# podium/core/paths.py finds these folders in a clone and in an installation.
SHIPPED = {"podium.docker": "docker", "podium.requirements": "requirements", "podium.systems": "systems"}
PACKAGES = find_namespace_packages(include=["benchmarks*", "implementations*", "podium*"])


class BuildPackages(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.copy_file("pyproject.toml", str(Path(self.build_lib) / "podium"))


setup(
    cmdclass={"build_py": BuildPackages},
    packages=[*PACKAGES, *SHIPPED, "podium.systems.costs", "podium.systems.search"],
    package_dir={**SHIPPED, "podium.systems.costs": "systems/costs", "podium.systems.search": "systems/search"},
)
