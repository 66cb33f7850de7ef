"""Carries the steps of a Dockerfile out into a folder, with the Python that runs the tests as the base image.

The file system of a stage is a folder. Every stage is built in the same place, one after the other, so that a path
means the same in each, as in an engine; what a stage leaves is moved aside for those that copy from it. Commands run in
a shell of this machine, with every absolute path of the image led into that folder, and with an environment of the
stage alone. The one thing that differs is where pip finds packages: in wheels made of what is installed here, without
a registry.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path

import pip

from tests.image.dockerfile import Step, context_files, expanded, steps

# Where the base image has its Python, and the variables that it sets.
BASE_PYTHON = "/usr/local"
BASE_PATH = "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
OF_THE_IMAGE = ("opt", "src", "usr/local")
LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "config-*", "lib2to3")
LEFT_OUT += ("*.opt-*.pyc", "pydoc_data", "distutils")


@dataclass
class Stage:
    """One stage while it is built: its variables, where relative paths begin, and what the image will say of itself."""

    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": BASE_PATH})
    workdir: str = "/"
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    ports: list[str] = field(default_factory=list)
    base: str = ""

    @property
    def values(self) -> dict[str, str]:
        return self.arguments | self.environment


class Building:
    """The image in the making. ``root`` is its file system, ``stage`` the stage that was last begun."""

    def __init__(self, folder: Path, context: Path, arguments: dict[str, str], pip_variables: dict[str, str]) -> None:
        self.root = folder / "root"
        self.stage = Stage()
        self._folder, self._context = folder, context
        self._given, self._pip_variables = arguments, pip_variables
        self._before: dict[str, str] = {}
        self._name = ""

    def carry_out(self, text: str) -> None:
        """All steps of a Dockerfile, in order."""
        for step in steps(text):
            getattr(self, f"_{step.word.lower()}")(step)

    def inside(self, text: str) -> str:
        """Paths of the image as paths of this machine."""
        names = "|".join(OF_THE_IMAGE)
        return re.sub(rf"(?<![\w.$}}/-])/(?=(?:{names})\b)", f"{self.root}/", text)

    def environment(self) -> dict[str, str]:
        """What a program of the image finds, and where the base's Python has its library."""
        found = {name: self.inside(value) for name, value in self.stage.environment.items()}
        return found | {"LD_LIBRARY_PATH": f"{self.root}{BASE_PYTHON}/lib"}

    # ---- one method for each instruction

    def _arg(self, step: Step) -> None:
        name, _, default = step.words[0].partition("=")
        value = self._given.get(name, self._before.get(name, default))
        if self.root.exists():
            self.stage.arguments[name] = value
        else:
            self._before[name] = value

    def _from(self, step: Step) -> None:
        base, *named = step.words
        if self.root.exists():
            self.root.rename(self._folder / self._name)
        self._name = named[1] if named else "last"
        self.stage = Stage(base=expanded(base, self._before))
        assert self.stage.base.startswith("docker.io/library/python:"), "only Python's official images are stood in for"
        if not (self._folder / "base").exists():
            _lay_base(self._folder / "base")
        shutil.copytree(self._folder / "base", self.root, symlinks=True, copy_function=os.link)

    def _env(self, step: Step) -> None:
        new = {name: expanded(value, self.stage.values) for name, value in step.pairs.items()}
        self.stage.environment |= new

    def _workdir(self, step: Step) -> None:
        self.stage.workdir = step.rest
        self._place(step.rest).mkdir(parents=True, exist_ok=True)

    def _copy(self, step: Step) -> None:
        stage = step.words[0].removeprefix("--from=") if step.words[0].startswith("--from=") else None
        *sources, target = step.words[1:] if stage else step.words
        for source in sources:
            if stage:
                # Moved, which is quick: a second COPY of the same would find nothing, and fail.
                self._place(target).parent.mkdir(parents=True, exist_ok=True)
                (self._folder / stage / source.lstrip("/")).rename(self._place(target))
            else:
                self._copy_from_context(source, target)

    def _copy_from_context(self, source: str, target: str) -> None:
        files = context_files(self._context, source)
        assert files, f".dockerignore lets nothing of {source} in"
        for file in files:
            below = file.relative_to(source) if (self._context / source).is_dir() else file.name
            into = self._place(target) / below
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self._context / file, into)

    def _run(self, step: Step) -> None:
        done = subprocess.run(
            ["/bin/sh", "-ec", self.inside(step.rest)],
            cwd=self._place("."),
            env=self.environment() | self.stage.arguments | self._pip_variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"line {step.line} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        _take_bytecode(self.root)

    def _label(self, step: Step) -> None:
        self.stage.labels |= {name: expanded(value, self.stage.values) for name, value in step.pairs.items()}

    def _user(self, step: Step) -> None:
        self.stage.user = step.rest

    def _expose(self, step: Step) -> None:
        self.stage.ports += step.words

    def _healthcheck(self, step: Step) -> None:
        assert step.rest == "NONE" or Step("CMD", step.rest.partition("CMD ")[2], step.line).exec_form

    def _entrypoint(self, step: Step) -> None:
        self.stage.entrypoint = step.exec_form

    def _cmd(self, step: Step) -> None:
        self.stage.command = step.exec_form

    def _place(self, path: str) -> Path:
        return self.root / self.stage.workdir.lstrip("/") / path if path[:1] != "/" else self.root / path[1:]


def _lay_base(root: Path) -> None:
    """What the base image has: Python with its library, its pip, and nothing that was installed."""
    home = root / BASE_PYTHON.lstrip("/")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    library = home / "lib" / version
    shutil.copytree(sysconfig.get_path("stdlib"), library, ignore=shutil.ignore_patterns(*LEFT_OUT))
    for shared in Path(sys.base_prefix, "lib").glob("libpython3*.so*"):
        shutil.copy2(shared, home / "lib" / shared.name)
    (home / "bin").mkdir()
    shutil.copy2(Path(sys.executable).resolve(), home / "bin" / version)
    (home / "bin" / "python").symlink_to(version)
    packages = library / "site-packages"
    source = Path(pip.__file__).parent
    for folder in (source, source.with_name(f"pip-{pip.__version__}.dist-info")):
        shutil.copytree(folder, packages / folder.name)


def _take_bytecode(root: Path) -> None:
    """Modules that are the same as here need not be compiled again: they get the time and the bytecode of these."""
    here = Path(sysconfig.get_path("purelib"))
    for packages in root.glob("opt/*/lib/python*/site-packages"):
        for source in packages.rglob("*.py"):
            cached = Path(cache_from_source(str(here / source.relative_to(packages))))
            into = source.parent / "__pycache__" / cached.name
            if cached.is_file() and not into.exists():
                into.parent.mkdir(exist_ok=True)
                shutil.copystat(cached.parent.parent / source.name, source)
                shutil.copyfile(cached, into)


def make_read_only(root: Path) -> None:
    """No write bit anywhere, for nobody; what can be read can be read by everybody."""
    for path, folders, files in os.walk(root):
        for name in (*folders, *files):
            each = Path(path, name)
            if not each.is_symlink():
                mode = each.stat().st_mode
                each.chmod(0o555 if each.is_dir() or mode & stat.S_IXUSR else 0o444)
    root.chmod(0o555)


def make_removable(root: Path) -> None:
    """The opposite, so that the folder can be thrown away."""
    for path, _, _ in os.walk(root):
        Path(path).chmod(0o755)
