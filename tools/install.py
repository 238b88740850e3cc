#!/usr/bin/env python3
"""Install Podium's packages into .venv, at the versions and with the SHA-256 of requirements/. setup.sh starts it.

    python3.11 tools/install.py run|test|dali ours|installed

`ours` installs torch too: its CUDA build where there is an NVIDIA driver, else its CPU build. `installed` takes the
torch that this Python has, as in NVIDIA's container. Environment variables:

    PODIUM_TORCH=cpu|cuda    the build of torch, whatever driver this machine has; UV_TORCH_BACKEND is honoured too
    PIP_*, UV_*              the settings of pip and uv, as their configuration files: indexes, folders of wheels, proxy

uv installs, from PATH or fetched by pip, since it takes a quarter of pip's time (docs/lab-notebook.md). Where uv cannot
be fetched or fails, pip installs. Uses the standard library only. Exit code 2 where something could not be installed,
130 or 143 when interrupted; the next start then makes .venv anew. Of two installations in one folder, one waits.
"""

import ast
import contextlib
import ctypes
import fcntl
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "podium.installing"  # there while packages are written, so after an interruption too
INSTALLATION_LOCK = ROOT / ".venv.lock"  # beside .venv, which an installation may replace
LOCK = ROOT / "requirements"
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Download and disk space in MB, by packages and build of torch; docs/lab-notebook.md, 2026-11-23.
SIZES: Mapping[tuple[str, str], tuple[int, int]] = {
    ("run", "cpu"): (380, 1600),
    ("run", "cuda"): (2900, 5600),
    ("run", "installed"): (190, 600),
    ("test", "cpu"): (620, 2800),
    ("test", "cuda"): (3000, 6100),
}
PR_SET_PDEATHSIG = 1
# Settings that would install somewhere else than into .venv.
OTHER_PLACES = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PYTHONPATH", "PYTHONHOME")
PIP_OPTIONS = ("--no-deps", "--require-hashes", "--only-binary=:all:")
UNREACHABLE = re.compile(
    r"Connect\w*Timeout|NewConnectionError|ProxyError|SSLError|Connection (?:broken|aborted|refused|reset)|timed out"
    r"|dns error|Name or service not known|Temporary failure|Network is unreachable|error sending request"
    r"|Max retries exceeded|tcp connect error|certificate",
    re.IGNORECASE,
)
OTHER_CONTENT = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch", re.IGNORECASE)
# Settings of pip that do not change which files are installed. With any other that `uv_settings` does not know, such as
# client-cert, pip installs.
IRRELEVANT = {
    *(
        "break-system-packages",
        "cache-dir",
        "compile",
        "config-file",
        "constraint",
        "default-timeout",
        "disable-pip-version-check",
    ),
    *("no-cache-dir", "no-color", "no-compile", "no-input", "no-warn-script-location", "only-binary", "prefer-binary"),
    *("progress-bar", "quiet", "require-hashes", "require-virtualenv", "retries", "root-user-action", "timeout"),
    "verbose",
}


class InstallError(Exception):
    """Something could not be installed; the message is one sentence."""


@dataclass(frozen=True)
class Torch:
    """Which build of torch is installed, and why."""

    build: str  # cpu, cuda or installed
    reason: str


def choose_torch(environment: Mapping[str, str], driver: Path = Path("/proc/driver/nvidia/version")) -> Torch:
    """By PODIUM_TORCH, else UV_TORCH_BACKEND, else by whether there is an NVIDIA driver, as uv's `auto` decides."""
    if wanted := environment.get("PODIUM_TORCH"):
        if wanted not in ("cpu", "cuda"):
            raise InstallError(f"PODIUM_TORCH: found {wanted!r}; allowed are cpu and cuda")
        return Torch(wanted, f"PODIUM_TORCH={wanted}")
    backend = environment.get("UV_TORCH_BACKEND", "auto")
    if not re.fullmatch(r"auto|cpu|cu\d+", backend):
        raise InstallError(f"UV_TORCH_BACKEND: found {backend!r}; allowed are auto, cpu and cu130 and the like")
    if backend != "auto":
        return Torch("cpu" if backend == "cpu" else "cuda", f"UV_TORCH_BACKEND={backend}")
    if "UV_CUDA_DRIVER_VERSION" in environment or driver.exists():
        return Torch("cuda", "this machine has an NVIDIA driver")
    smi = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if smi and subprocess.run([smi, "--list-gpus"], capture_output=True, check=False).returncode == 0:
        return Torch("cuda", "nvidia-smi lists GPUs")
    return Torch("cpu", "this machine has no NVIDIA driver")


def announcement(packages: str, torch: Torch) -> str:
    """What is installed and why, and how large it is."""
    count = len(re.findall(r"^\S+==", (LOCK / f"{packages}.txt").read_text(encoding="utf-8"), flags=re.MULTILINE))
    if torch.build == "installed":
        what = f"{count} packages; torch is the one of this Python"
    else:
        text = (LOCK / f"torch-{torch.build}.txt").read_text(encoding="utf-8")
        version = re.findall(r"^torch==([\d.]+)", text, flags=re.MULTILINE)[0]
        name = {"cpu": "CPUs", "cuda": "CUDA"}[torch.build]
        what = f"torch {version} for {name} ({torch.reason}) and {count} other packages"
    about = ""
    if size := SIZES.get((packages, torch.build)):
        download, disk = (f"{part / 1000:.1f} GB" if part >= 1000 else f"{part} MB" for part in size)
        about = f": up to {download} to download, {disk} on disk"
    return f"installing into .venv, once: {what}\npodium: this may take minutes{about}"


@dataclass
class Installer:
    """Calls of uv and pip, which share one environment and what was found out about the network."""

    environment: dict[str, str]
    terminal: bool = field(default_factory=lambda: sys.stderr.isatty())
    offline: bool = False  # whether no index answered, so that folders of wheels are all there is
    uv: str | None = None
    uv_options: list[str] = field(default_factory=list)
    pip_settings: dict[str, str] = field(default_factory=dict)
    messages: str = ""  # what the last command printed

    def find_uv(self) -> None:
        """uv from PATH, else by pip into .venv, else none. Raises InstallError where no index can be reached."""
        self.pip_settings = self.read_pip_settings()
        options = uv_settings(self.pip_settings, self.environment)
        self.uv = shutil.which("uv", path=self.environment.get("PATH"))
        if self.uv is None and options is not None:
            fetched = self.pip("--retries=1", "--timeout=5", *PIP_OPTIONS, "-r", str(LOCK / "uv.txt"), quiet=True)
            self.uv = str(VENV / "bin" / "uv") if fetched else None
            self.refuse_other_content("uv.txt")
            if UNREACHABLE.search(self.messages):
                self.note_unreachable()
        if options is None:
            self.uv = None
        self.uv_options = options or []

    def install(self, file: str, *indexes: str) -> None:
        """The packages of one lock file, by uv, else by pip. `indexes` come in the place of the machine's own."""
        arguments = [*PIP_OPTIONS, "-r", str(LOCK / file)]
        if self.uv is not None:
            options = [f"--default-index={index}" for index in indexes] or self.uv_options
            if self.run(
                [self.uv, "pip", "install", "--python", str(PYTHON), *options, *self.uv_switches(), *arguments]
            ):
                return
            self.refuse_other_content(file)
        wanted = ["--retries=1"] if UNREACHABLE.search(self.messages) else []  # uv has tried that already
        if not self.pip(*wanted, *(f"--index-url={index}" for index in indexes), *arguments):
            self.refuse_other_content(file)
            raise InstallError(self.unreachable(*indexes) if UNREACHABLE.search(self.messages) else self.failure(file))

    def has(self, file: str) -> bool:
        """Whether the machine's own indexes and folders have the packages of a lock file."""
        arguments = [*PIP_OPTIONS, "--dry-run", "-r", str(LOCK / file)]
        if self.uv is None:
            found = self.pip("--retries=1", *arguments, quiet=True)
        else:
            switches = [*self.uv_options, *self.uv_switches()]
            command = [self.uv, "pip", "install", "--python", str(PYTHON), *switches, *arguments]
            found = self.run(command, quiet=True)
        if not found and not self.offline and UNREACHABLE.search(self.messages):
            self.note_unreachable()
            return self.has(file)
        return found

    def note_unreachable(self) -> None:
        """Take packages from the folders of wheels alone; InstallError where there is none."""
        folders = self.pip_settings.get("find-links") or self.environment.get("UV_FIND_LINKS")
        if not folders:
            raise InstallError(self.unreachable())
        self.offline = True
        report(f"the package index cannot be reached; packages are taken from {folders} only")

    def pip(self, *arguments: str, quiet: bool = False) -> bool:
        # Constraints, such as those of NVIDIA's container, would forbid the locked versions.
        environment = self.environment | {"PIP_CONSTRAINT": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        offline = ["--no-index"] if self.offline else []
        command = [str(PYTHON), "-m", "pip", "install", *([] if self.terminal and not quiet else ["--quiet"])]
        return self.run([*command, *offline, *arguments], environment, quiet)

    def run(self, command: Sequence[str], environment: Mapping[str, str] | None = None, quiet: bool = False) -> bool:
        """Whether a command succeeded. Errors are kept in `messages`; a terminal shows them and progress at once."""
        shown = self.terminal and not quiet
        # On a terminal the command gets one too, or it would draw no progress bars.
        reading, writing = pty.openpty() if shown else os.pipe()
        if shown:
            fcntl.ioctl(writing, termios.TIOCSWINSZ, fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8)))
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment or self.environment,
            stdout=writing if shown else subprocess.DEVNULL,
            stderr=writing,
        )
        os.close(writing)
        printed = bytearray()
        try:
            with os.fdopen(reading, "rb", buffering=0) as output, contextlib.suppress(OSError):  # EIO ends a terminal
                while part := output.read(65536):
                    printed += part
                    if shown:
                        os.write(2, part)
        except BaseException:  # interrupted: nothing may be written into .venv after this process has ended
            process.terminate()
            process.wait()
            raise
        self.messages = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode(errors="replace")).replace("\r", "\n")
        return process.wait() == 0

    def uv_switches(self) -> list[str]:
        # Any index may have a file, as with pip: the hash decides. Modules are compiled when they are first imported,
        # unless Python is not to write what it compiles, or another user is to run them.
        compiled = "PYTHONDONTWRITEBYTECODE" in self.environment or "PIP_NO_CACHE_DIR" in self.environment
        return [
            "--index-strategy=unsafe-best-match",
            *(["--compile-bytecode"] if compiled else []),
            *(["--no-cache"] if self.uv == str(VENV / "bin" / "uv") else []),
            *(["--no-index"] if self.offline else []),
            *([] if self.terminal else ["--quiet"]),
        ]

    def read_pip_settings(self) -> dict[str, str]:
        """The machine's own settings of pip for `install`, from its files and from PIP_*."""
        command = [str(PYTHON), "-m", "pip", "config", "list"]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return read_pip_settings(done.stdout)

    def refuse_other_content(self, file: str) -> None:
        if OTHER_CONTENT.search(self.messages):
            raise InstallError(
                f"a package is not the one that requirements/{file} records, by its SHA-256, and was not installed; "
                f"see that the index is not tampered with\n{self.messages.strip()}"
            )

    def unreachable(self, index: str = "") -> str:
        found = re.search(r"https?://[^/\s'\"`)]+", index or self.messages)
        where = f" {found[0]}" if found else ""
        return (
            f"the package index{where} cannot be reached, so that nothing more was installed; check the network and "
            "the proxy of this machine, or set PIP_INDEX_URL to a mirror, or PIP_NO_INDEX=1 and PIP_FIND_LINKS to a "
            "folder of wheels (docs/getting-started.md)"
        )

    def failure(self, file: str) -> str:
        last = [line.strip() for line in self.messages.splitlines() if line.strip()][-1:] or ["no reason was given"]
        return f"the packages of requirements/{file} were not installed: {last[0].removeprefix('ERROR: ')}"


def read_pip_settings(text: str) -> dict[str, str]:
    """Settings from the output of `pip config list`; `install` comes before `global`, the environment before both."""
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):
        for key, value in re.findall(rf"^{section}\.([\w-]+)=(.*)$", text, flags=re.MULTILINE):
            try:
                settings[key] = " ".join(str(ast.literal_eval(value)).split())
            except (ValueError, SyntaxError):
                settings[key] = value
    return settings


def uv_settings(settings: Mapping[str, str], environment: dict[str, str]) -> list[str] | None:
    """uv's options for the machine's settings of pip, with variables set in `environment`; None where uv has none.

    Where uv has its own settings, those count, and pip's are not passed on.
    """
    own = ("UV_INDEX", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_CONFIG_FILE")
    home = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config")
    files = [home / "uv" / "uv.toml", Path("/etc/uv/uv.toml")]
    if any(name in environment for name in own) or any(file.exists() for file in files):
        return []
    options: list[str] = []
    for key, value in settings.items():
        match key:
            case "index-url":
                options.append(f"--default-index={value}")
            case "extra-index-url":
                options += [f"--index={each}" for each in value.split()]
            case "find-links":
                options += [f"--find-links={each}" for each in value.split()]
            case "trusted-host":
                options += [f"--allow-insecure-host={each}" for each in value.split()]
            case "no-index":
                options += ["--no-index"] if value.lower() in ("1", "true", "yes", "on") else []
            case "cert":
                environment.setdefault("SSL_CERT_FILE", value)
            case "proxy":
                environment.setdefault("ALL_PROXY", value)
            case _ if key not in IRRELEVANT:
                return None
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # which pip honours and uv does not
        if name in environment:
            environment.setdefault("SSL_CERT_FILE", environment[name])
    return options


def make_venv(system_packages: bool) -> None:
    """Make an environment with pip, unless the present one is complete and was made in this folder."""
    if not UNFINISHED.exists() and venv_works():
        return
    # Renamed before it is deleted: of a .venv without pyvenv.cfg, bin/python is the machine's own Python, and an
    # interrupted deletion would make the next installation write there.
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        VENV.rename(VENV.with_name(f".venv.old.{os.getpid()}"))
    for old in ROOT.glob(".venv.old.*"):
        shutil.rmtree(old, ignore_errors=True)
    try:
        venv.create(VENV, with_pip=True, system_site_packages=system_packages, symlinks=True)
    except subprocess.CalledProcessError as error:
        raise InstallError(f"pip was not installed into .venv: {error}") from error


def venv_works() -> bool:
    """Whether .venv has pip and a Python that installs there, and was made in this folder, which its scripts name."""
    try:
        command = re.search(r"^command = (.*)$", (VENV / "pyvenv.cfg").read_text(encoding="utf-8"), flags=re.MULTILINE)
        prefix = [str(PYTHON), "-c", "import sys, pip; print(sys.prefix)"]
        done = subprocess.run(prefix, capture_output=True, text=True, check=False)
    except OSError:  # there is none, or its Python has been removed
        return False
    here = command is not None and command[1].endswith(f" {VENV}")
    return here and done.returncode == 0 and Path(done.stdout.strip()).resolve() == VENV.resolve()


def end_with_parent() -> None:
    """Get SIGTERM when the shell that started this process has ended; it may have been killed alone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def only_installation() -> Iterator[None]:
    """Wait until no other installation is at work in this folder."""
    with INSTALLATION_LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another installation is at work in this folder; waiting until it has finished")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(packages: str, torch: Torch, installer: Installer) -> None:
    """Everything; the project last, in its place."""
    installer.find_uv()
    if torch.build == "cuda":
        installer.install("torch-cuda.txt")
    elif torch.build == "cpu":
        # A mirror or folder of this machine may have the CPU build; PyPI has the CUDA build only.
        indexes = () if installer.has("torch-cpu.txt") or installer.offline else (PYTORCH_INDEX,)
        installer.install("torch-cpu.txt", *indexes)
    if torch.build != "installed":
        report("torch is installed")
    installer.install(f"{packages}.txt")
    if not installer.pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT), quiet=True):
        raise InstallError(f"Podium was not installed into .venv: {installer.failure('uv.txt')}")


def report(text: str) -> None:
    print(f"podium: {text}", file=sys.stderr, flush=True)


def terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM as an exception, so that uv or pip is ended first."""
    raise SystemExit(128 + number)


def main() -> int:
    packages, mode = sys.argv[1:]
    signal.signal(signal.SIGTERM, terminate)
    end_with_parent()
    started = time.monotonic()
    environment = dict(os.environ)
    try:
        torch = Torch("installed", "") if mode == "installed" else choose_torch(environment)
        # The first three would change what the lock names, the others where it is installed.
        for name in ("UV_TORCH_BACKEND", "UV_CONSTRAINT", "UV_OVERRIDE", *OTHER_PLACES):
            environment.pop(name, None)
        environment["PIP_REQUIRE_VIRTUALENV"] = "1"
        environment.setdefault("UV_HTTP_CONNECT_TIMEOUT", "5")  # for an answer within half a minute where there is none
        report(announcement(packages, torch))
        with only_installation():
            make_venv(system_packages=mode == "installed")
            UNFINISHED.touch()
            install(packages, torch, Installer(environment))
            UNFINISHED.unlink()
    except InstallError as error:
        UNFINISHED.unlink(missing_ok=True)  # what is there stays: the next start installs into it
        report(f"{error}")
        return 2
    except OSError as error:
        report(f".venv cannot be written ({error}); see that the disk has space")
        return 2
    except (KeyboardInterrupt, SystemExit) as interruption:
        report("interrupted; the next start installs again")
        return 130 if isinstance(interruption, KeyboardInterrupt) else 143
    report(f"installed in {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
