"""tools/install.py: which build of torch, whose settings, and what is printed where something is missing."""

import os
import shutil
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import load_script

install = load_script("tools/install.py")
Installer, InstallError, Torch = install.Installer, install.InstallError, install.Torch
ROOT = Path(__file__).resolve().parents[1]
NO_DRIVER = Path("/proc/driver/there is none")


@pytest.mark.parametrize(
    ("environment", "build"),
    [
        ({}, "cpu"),
        ({"UV_TORCH_BACKEND": "auto"}, "cpu"),
        ({"UV_TORCH_BACKEND": "cu130"}, "cuda"),
        ({"UV_TORCH_BACKEND": "cu130", "PODIUM_TORCH": "cpu"}, "cpu"),
        ({"PODIUM_TORCH": "cuda"}, "cuda"),
        ({"UV_CUDA_DRIVER_VERSION": "580.1"}, "cuda"),
    ],
)
def test_the_environment_chooses_the_build(environment: dict[str, str], build: str, tmp_path: Path) -> None:
    assert install.choose_torch({"PATH": str(tmp_path), **environment}, NO_DRIVER).build == build


def test_a_driver_or_nvidia_smi_chooses_cuda(tmp_path: Path) -> None:
    (tmp_path / "version").touch()
    assert install.choose_torch({"PATH": ""}, tmp_path / "version") == Torch(
        "cuda", "this machine has an NVIDIA driver"
    )
    smi = tmp_path / "nvidia-smi"
    for code, build in ((0, "cuda"), (9, "cpu")):
        smi.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
        smi.chmod(0o755)
        assert install.choose_torch({"PATH": str(tmp_path)}, NO_DRIVER).build == build


def test_a_build_that_there_is_not_is_refused() -> None:
    with pytest.raises(InstallError, match=r"PODIUM_TORCH: found 'gpu'; allowed are cpu and cuda"):
        install.choose_torch({"PODIUM_TORCH": "gpu"})
    with pytest.raises(InstallError, match=r"UV_TORCH_BACKEND: found 'gpu'; allowed are auto, cpu and cu130"):
        install.choose_torch({"UV_TORCH_BACKEND": "gpu"})


@pytest.mark.parametrize(
    ("packages", "torch", "printed"),
    [
        ("run", Torch("cpu", "why"), ("for CPUs (why) and ", "up to 380 MB to download, 1.6 GB on disk")),
        ("test", Torch("cuda", "why"), ("for CUDA (why) and ", "up to 3.0 GB to download, 6.1 GB on disk")),
        ("run", Torch("installed", ""), ("torch is the one of this Python", "190 MB")),
    ],
)
def test_what_is_downloaded_and_its_size_are_printed(packages: str, torch: Any, printed: tuple[str, ...]) -> None:
    text = install.announcement(packages, torch)
    assert all(part in text for part in printed), text


CONFIG = """\
:env:.find-links='/opt/wheels'
:env:.no-index='1'
global.find-links='/else where\\n/more'
global.index-url='https://mirror/simple'
global.timeout='3'
install.index-url='https://other/simple'
"""


def test_pips_settings_are_read_in_pips_order_and_passed_to_uv() -> None:
    settings = install.read_pip_settings(CONFIG)
    assert settings == {
        "find-links": "/opt/wheels",
        "no-index": "1",
        "index-url": "https://other/simple",
        "timeout": "3",
    }
    settings |= {"cert": "/ca.pem", "proxy": "http://proxy:1", "extra-index-url": "https://a/ https://b/"}
    environment = {"HOME": "/none"}
    assert sorted(install.uv_settings(settings, environment) or []) == [
        "--default-index=https://other/simple",
        "--find-links=/opt/wheels",
        "--index=https://a/",
        "--index=https://b/",
        "--no-index",
    ]
    assert environment == {"HOME": "/none", "SSL_CERT_FILE": "/ca.pem", "ALL_PROXY": "http://proxy:1"}


def test_uvs_own_settings_come_before_pips(tmp_path: Path) -> None:
    assert install.uv_settings({"index-url": "https://a"}, {"UV_FIND_LINKS": "/w"}) == []
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv" / "uv.toml").touch()
    assert install.uv_settings({"index-url": "https://a"}, {"XDG_CONFIG_HOME": str(tmp_path)}) == []


def test_a_setting_that_uv_has_not_leaves_the_work_to_pip() -> None:
    assert install.uv_settings({"client-cert": "/me.pem"}, {"HOME": "/none"}) is None


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that installing needs, with a .venv whose Python is this one's."""
    for name in ("pyproject.toml", "setup.py", "setup.sh", "run_and_time.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("requirements", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(install, "ROOT", tmp_path)
    return tmp_path


def without_network(**settings: str) -> dict[str, str]:
    """No uv, and no settings of this machine."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return kept | {"PATH": path, "HOME": "/none", "PIP_CONFIG_FILE": os.devnull, **settings}


def test_without_a_network_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = without_network()
    monkeypatch.setattr(install, "PYTHON", Path(sys.executable))
    installer = Installer(environment, terminal=False)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(installer, "pip", lambda *arguments, quiet: unreachable(installer))
    with pytest.raises(InstallError, match=r"the package index cannot be reached, .*PIP_FIND_LINKS to a folder"):
        installer.find_uv()
    installer.environment["PIP_FIND_LINKS"] = "/opt/wheels"
    installer.find_uv()
    assert installer.offline and "--no-index" in installer.uv_switches()


def unreachable(installer: Any) -> bool:
    installer.messages = "WARNING: Retrying after connection broken by 'NewConnectionError': /simple/uv/"
    return False


def test_another_content_than_the_locked_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real pip, with a wheel of the right name and version and other bytes."""
    wheel = tmp_path / "mdurl-0.1.2-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    lock = "mdurl==0.1.2 --hash=sha256:84008a41e51615a49fc9966191ff91509e3c40b939176e643fd50a5c2196b8f8\n"
    (tmp_path / "mine.txt").write_text(lock, encoding="utf-8")
    monkeypatch.setattr(install, "LOCK", tmp_path)
    monkeypatch.setattr(install, "PYTHON", Path(sys.executable))
    environment = without_network(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(tmp_path), PIP_TARGET=str(tmp_path / "to"))
    with pytest.raises(InstallError, match=r"a package is not the one that requirements/mine\.txt records"):
        Installer(environment, terminal=False).install("mine.txt")
    assert not (tmp_path / "to" / "mdurl").exists()


@pytest.mark.parametrize(
    ("failure", "code", "left"), [("InstallError('no')", 2, False), ("KeyboardInterrupt", 130, True)]
)
def test_an_interruption_is_remembered_and_a_failure_leaves_what_there_was(
    clone: Path, failure: str, code: int, left: bool
) -> None:
    program = (
        f"import sys; sys.path.insert(0, 'tools'); import install\n"
        f"def fail(*_): raise {failure.replace('Install', 'install.Install')}\n"
        "install.make_venv = lambda system_packages: install.VENV.mkdir(); install.install = fail\n"
        "sys.argv[1:] = ['run', 'ours']; sys.exit(install.main())"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert (clone / ".venv" / "podium.installing").exists() == left
    last = done.stderr.splitlines()[-1]
    assert last == ("podium: interrupted; the next start installs again" if left else "podium: no")


def test_a_failed_installation_ends_the_command_with_its_code(clone: Path) -> None:
    (clone / "tools" / "install.py").write_text("import sys; sys.exit(2)\n", encoding="utf-8")
    done = subprocess.run([clone / "run_and_time.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not (clone / ".venv" / "podium.installed").exists()


@pytest.fixture
def environment_folder(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete .venv, with a module that stands for pip."""
    folder = clone / ".venv"
    venv.create(folder, symlinks=True)
    (next(folder.glob("lib/python*/site-packages")) / "pip.py").touch()
    for name, path in (
        ("VENV", folder),
        ("PYTHON", folder / "bin/python"),
        ("UNFINISHED", folder / "podium.installing"),
    ):
        monkeypatch.setattr(install, name, path)
    return folder


def test_an_environment_of_another_folder_or_without_its_parts_does_not_work(
    environment_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install.venv_works()
    configuration = environment_folder / "pyvenv.cfg"
    text = configuration.read_text(encoding="utf-8")
    configuration.unlink()
    assert not install.venv_works(), "its Python would install into the machine's"
    configuration.write_text(text, encoding="utf-8")
    moved = environment_folder.rename(environment_folder.with_name("moved"))
    monkeypatch.setattr(install, "VENV", moved)
    monkeypatch.setattr(install, "PYTHON", moved / "bin/python")
    assert not install.venv_works()
    moved.rename(environment_folder)
    monkeypatch.setattr(install, "VENV", environment_folder)
    (environment_folder / "bin/python").unlink()
    (environment_folder / "bin/python").symlink_to("/nowhere/python3.11")
    monkeypatch.setattr(install, "PYTHON", environment_folder / "bin/python")
    assert not install.venv_works()


@pytest.mark.parametrize("broken", ["podium.installing", "pyvenv.cfg"])
def test_a_broken_environment_is_replaced_as_a_whole(
    environment_folder: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    install.make_venv(system_packages=False)
    assert (environment_folder / "pyvenv.cfg").is_file(), "a complete one stays"
    if broken == "pyvenv.cfg":
        (environment_folder / broken).unlink()
    else:
        (environment_folder / broken).touch()
    monkeypatch.setattr(install.venv, "create", lambda folder, **_: folder.mkdir())
    install.make_venv(system_packages=False)
    assert list(environment_folder.iterdir()) == []
    assert not list(environment_folder.parent.glob(".venv.old.*"))


def test_a_second_installation_waits(
    clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "INSTALLATION_LOCK", clone / ".venv.lock")
    steps = []

    def second() -> None:
        with install.only_installation():
            steps.append("second")

    thread = threading.Thread(target=second)
    with install.only_installation():
        thread.start()
        while "another installation is at work" not in capsys.readouterr().err:
            time.sleep(0.005)
        steps.append("first")
    thread.join()
    assert steps == ["first", "second"]


STUB = """
import pathlib, sys
python = pathlib.Path(".venv/bin/python")
python.parent.mkdir(parents=True, exist_ok=True)
python.write_text("#!/bin/sh\\n")
python.chmod(0o755)
pathlib.Path(".venv/podium.installing").unlink(missing_ok=True)
print(f"installing {sys.argv[1]}")
"""


def test_what_is_recorded_as_installed_is_what_was_installed(clone: Path) -> None:
    """setup.sh with an installer that installs nothing."""
    (clone / "tools/install.py").write_text(STUB, encoding="utf-8")

    def setup(extra: str = "") -> str:
        command = ["bash", "-c", f"set -euo pipefail; source ./setup.sh '{extra}'"]
        return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True).stdout

    assert [setup(), setup(), setup("test"), setup("test"), setup()] == [
        "installing run\n",
        "",
        "installing test\n",
        "",
        "",
    ]
    (clone / ".venv/podium.installing").touch()
    assert setup() == "installing run\n", "after an interruption"
    lock = clone / "requirements/run.txt"
    before = lock.read_text(encoding="utf-8")
    lock.write_text(before + "# another version\n", encoding="utf-8")
    setup("test")  # of the other lock: nothing changes for it
    torch = clone / "requirements/torch-cpu.txt"
    torch.write_text(torch.read_text(encoding="utf-8") + "# another version\n", encoding="utf-8")
    assert setup("test") == "installing test\n"
    lock.write_text(before, encoding="utf-8")
    assert setup() == "installing run\n", "its record was of another torch"
    (clone / ".venv/bin/python").unlink()
    assert setup() == "installing run\n", "its Python was removed"
