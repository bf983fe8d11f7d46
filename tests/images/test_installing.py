"""Packages get into a tree by its own Python, and by the configuration of the user's pip."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.errors import ConfigError, RuntimeUnavailable
from agentenv.images import installing
from agentenv.images.chroot import HOST, run_inside
from agentenv.images.inodes import EPOCH
from agentenv.images.interpreter import base_interpreter, copy_interpreter, find_loader
from agentenv.images.programs import need_program, run
from agentenv.images.progress import LINES
from agentenv.images.rootfs import Recipe, build_image
from agentenv.images.store import Store
from agentenv.images.trees import Tree


def make_wheel(folder: Path, version: str = "1.0") -> Path:
    path = folder / f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, need) -> Path:
    """A root file system with nothing but a Python, where a loader finds it."""
    need("ldd", "mkfs.ext4")
    root = tmp_path_factory.mktemp("system")
    copy_interpreter(root / "usr")
    loader = find_loader(base_interpreter())
    assert loader is not None
    (root / loader.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(loader).resolve(), root / loader.lstrip("/"))
    for path in (root / "usr").rglob("agentenv.pth"):
        path.unlink()
    return root


def test_a_wheel_and_a_project_are_importable(system: Path, store: Store, tmp_path: Path) -> None:
    project = tmp_path / "my-project"
    (project / "src/mine").mkdir(parents=True)
    (project / "src/mine/__init__.py").write_text("import tiny\nprint('mine', tiny.VERSION)\n")
    (project / "top.py").write_text("print('top')\n")
    (project / ".git").mkdir()
    wheel = make_wheel(tmp_path)
    recipe = Recipe(str(system), (str(wheel),), project)
    made = build_image("mine", recipe, store)
    assert made.packages == ("tiny==1.0",)
    (step,) = (store.root / "steps").iterdir()
    tree = Tree.load(step)
    done = run_inside(tree, ["python3", "-c", "import tiny; print(tiny.VERSION, tiny.__cached__)"], purpose="looking")
    assert done.text.startswith("1.0 /usr/lib/python")
    pyc = next(tree.root.rglob("tiny.*.pyc"))
    assert pyc.read_bytes()[4:8] == b"\1\0\0\0", "byte code that does not look at times"
    assert not list(tree.root.rglob(".resolv.conf*"))
    assert not (tree.root / "etc/resolv.conf").exists()
    assert os.listdir(tree.root / "tmp") == []
    # The same again: nothing is done; another version: another image.
    assert build_image("mine", recipe, store).digest == made.digest
    other = Store(tmp_path / "other")
    assert build_image("mine", recipe, other).digest == made.digest, "at another time, in another place"
    wheel.unlink()
    newer = build_image("mine", Recipe(str(system), (str(make_wheel(tmp_path, "2.0")),), project), store)
    assert newer.packages == ("tiny==2.0",)
    assert newer.digest != made.digest
    inside = tmp_path / "inside"
    inside.mkdir()
    run([need_program("debugfs", "to look"), "-R", f"rdump / {inside}", str(newer.path)], purpose="looking")
    (tmp_path / "place").mkdir()
    looked = Tree(inside)
    done = run_inside(looked, ["python3", "-c", "import mine, top"], purpose="looking")
    assert done.text == "mine 2.0\ntop\n"
    assert not (inside / "opt/project/my-project/.git").exists()


def test_a_package_that_is_not_to_be_had(system: Path, store: Store, tmp_path: Path) -> None:
    damaged = make_wheel(tmp_path)
    damaged.write_bytes(b"no wheel")
    with pytest.raises(RuntimeUnavailable, match=r"(?s)installing .*tiny.* into the image: .*ended with exit code"):
        build_image("mine", Recipe(str(system), (str(damaged),)), store)
    assert os.listdir(store.root / "tmp") == []
    assert list((store.root / "steps").iterdir()) == []


def test_an_image_without_python(store: Store, tmp_path: Path) -> None:
    (tmp_path / "root/bin").mkdir(parents=True)
    for recipe in (
        Recipe(str(tmp_path / "root"), (str(make_wheel(tmp_path)),)),
        Recipe(str(tmp_path / "root"), project=tmp_path / "root"),
    ):
        with pytest.raises(ConfigError, match="expected an image with a Python"):
            build_image("mine", recipe, store)


@pytest.mark.parametrize("text", ["--index-url=x", "-r", "./nothing", "/nothing.whl", " "])
def test_what_is_no_package(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a package as pip knows it"):
        installing.pin((text,))


def test_a_local_wheel_counts_by_its_content(tmp_path: Path) -> None:
    first = installing.pin((str(make_wheel(tmp_path)), "numpy>=2"))
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copy(make_wheel(tmp_path), tmp_path / "elsewhere")
    assert first[1] == "numpy>=2"
    make_wheel(tmp_path, "1.0").write_bytes(b"other")
    assert installing.pin((str(moved), "numpy>=2"))[0].startswith("tiny-1.0-py3-none-any.whl@")
    assert installing.pin((str(tmp_path / "tiny-1.0-py3-none-any.whl"),))[0] != first[0]


def test_the_users_configuration_reaches_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wheels", "index/simple", "index/files"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ca.pem").write_text("")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nfind-links = {tmp_path}/wheels\n  file://{tmp_path}/wheels\ncert = {tmp_path}/ca.pem\n"
        f"target = {tmp_path}/wrong\ncache-dir = /wrong\nretries = 2\n[install]\nretries = 3\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv(
        "PIP_EXTRA_INDEX_URL", f"file://{tmp_path}/index/simple https://user:secret@index.example/simple"
    )
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    shown: dict[str, str] = {}
    variables = installing._configuration(installing._host_pips()[0], shown)
    wheels, bundle, index = (shown[str(tmp_path / name)] for name in ("wheels", "ca.pem", "index"))
    assert variables["PIP_FIND_LINKS"] == f"{HOST}/{wheels} file://{HOST}/{wheels}"
    assert variables["PIP_CERT"] == variables["REQUESTS_CA_BUNDLE"] == f"{HOST}/{bundle}"
    assert variables["PIP_EXTRA_INDEX_URL"] == f"file://{HOST}/{index}/simple https://user:secret@index.example/simple"
    assert variables["PIP_RETRIES"] == "3"
    assert variables["https_proxy"] == "http://proxy.example:3128"
    assert "PIP_TARGET" not in variables
    assert "PIP_CACHE_DIR" not in variables
    assert str(tmp_path / "wrong") not in shown


@pytest.mark.parametrize(("version", "fits"), [("3.8.10", False), ("3.9.2", True), ("3.11.4", True), ("4.0.0", True)])
def test_a_pip_that_is_too_new_for_the_image_is_passed_by(tmp_path: Path, version: str, fits: bool) -> None:
    text = "Metadata-Version: 2.1\nName: pip\nRequires-Python: >=3.9\n\nRequires-Python: >=9.9\n"
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip-26.0.dist-info").mkdir()
    (tmp_path / "pip-26.0.dist-info/METADATA").write_text(text)
    with zipfile.ZipFile(tmp_path / "pip-26.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pip-26.0.dist-info/METADATA", text)
    for pip in (tmp_path / "pip", tmp_path / "pip-26.0-py3-none-any.whl"):
        assert installing._runs_by(pip, version) == fits


def test_the_pips_of_this_host_run_by_its_own_python() -> None:
    own = ".".join(map(str, sys.version_info[:3]))
    assert all(installing._runs_by(pip, own) for pip in installing._host_pips())
    assert not any(installing._runs_by(pip, "2.7.18") for pip in installing._host_pips())


def test_a_program_of_an_image_sees_the_image_alone(system: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    tree = Tree.make(tmp_path / "place")
    for name in ("usr", "lib64", "lib"):
        if (system / name).exists():
            shutil.copytree(system / name, tree.root / name)
    code = (
        "import os, socket\n"
        "print(os.getuid(), sorted(os.listdir('/')), os.listdir('/tmp'), len(os.listdir('/proc')) < 90)\n"
        "print(sorted(os.environ))\n"
        "try: socket.create_connection(('127.0.0.1', 22), 1)\n"
        "except OSError as error: print('no way')\n"
        "open('/etc-written', 'w').close(); os.chown('/etc-written', 0, 0)\n"
    )
    done = run_inside(tree, ["python3", "-c", code], purpose="looking")
    lines = done.text.splitlines()
    assert lines[0].startswith("0 ['dev', 'lib64', 'proc', 'run', 'tmp', 'usr'] [] True")
    assert "AGENTENV_CACHE" not in lines[1]
    assert lines[2] == "no way"
    assert (tree.root / "etc-written").stat().st_uid == os.geteuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="about programs that root runs")
def test_a_program_that_root_runs_is_root_of_the_image_and_nobody_to_the_host(system: Path, tmp_path: Path) -> None:
    code = (
        "import os\n"
        "for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/vm/drop_caches'):\n"
        "    try:\n"
        "        os.close(os.open(path, os.O_WRONLY))\n"
        "        print(path)\n"
        "    except OSError:\n"
        "        pass\n"
        "try:\n"
        "    os.utime('/dev/null', (1, 1))\n"
        "    print('/dev/null')\n"
        "except OSError:\n"
        "    pass\n"
        "open('/made', 'w').close()\n"
        "print(os.getuid(), os.stat('/made').st_uid, os.stat('/made').st_gid)\n"
    )
    root = tmp_path / "tree"
    shutil.copytree(system, root, symlinks=True)
    said = run_inside(Tree(root), ["python3", "-c", code], purpose="looking")
    assert said.text.splitlines() == ["0 0 0"]
    made = (root / "made").stat()
    assert (made.st_uid, made.st_gid) == (0, 0)


def test_progress_lines_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "agentenv.images"), LINES.task("doing it", 10) as task:
        task.advance(10)
    assert [record.message for record in caplog.records] == ["doing it"]


@pytest.fixture
def hostile(system: Path, tmp_path: Path) -> Path:
    """A copy of the system for a test to make hostile."""
    return shutil.copytree(system, tmp_path / "hostile", symlinks=True)


def site_packages(root: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    said = run_inside(Tree(root), ["python3", "-I", "-c", code], purpose="looking")
    return root / said.text.strip().lstrip("/")


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory of this host that the sandbox of a step does not lay a new one over, as it does over /tmp."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="agentenv-test-") as path:
        yield Path(path)


def test_a_project_lands_in_the_image_wherever_its_links_lead(
    hostile: Path, store: Store, tmp_path: Path, outside: Path
) -> None:
    project = tmp_path / "mine"
    (outside / "packages").mkdir()
    project.mkdir()
    (project / "mine.py").write_text("print('mine')\n")
    packages = site_packages(hostile)
    packages.mkdir(parents=True, exist_ok=True)
    moved = hostile / str(outside / "packages").lstrip("/")
    moved.parent.mkdir(parents=True)
    packages.rename(moved)
    packages.symlink_to(outside / "packages")
    (moved / "project-mine.pth").symlink_to(outside / "file")
    (hostile / "opt").symlink_to(outside)
    made = build_image("mine", Recipe(str(hostile), project=project), store)
    assert [path.relative_to(outside) for path in sorted(outside.rglob("*"))] == [Path("packages")]
    inside = tmp_path / "inside"
    inside.mkdir()
    run([need_program("debugfs", "to look"), "-R", f"rdump / {inside}", str(made.path)], purpose="looking")
    done = run_inside(Tree(inside), ["python3", "-c", "import mine; print(mine.__file__)"], purpose="looking")
    assert done.text == "mine\n/opt/project/mine/mine.py\n"
    assert [path.relative_to(outside) for path in sorted(outside.rglob("*"))] == [Path("packages")]


def test_what_a_program_of_the_image_puts_in_place_of_a_directory_leads_nowhere(
    hostile: Path, store: Store, tmp_path: Path, outside: Path
) -> None:
    (outside / "resolv.conf").write_text("the host's")
    (hostile / "etc").mkdir()
    (hostile / "etc/resolv.conf").write_text("the image's")
    packages = site_packages(hostile)
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "sitecustomize.py").write_text(
        "import os\n"
        "if os.path.isdir('/tmp/.host') and not os.path.islink('/etc'):\n"
        f"    os.rename('/etc', '/moved'); os.symlink({str(outside)!r}, '/etc')\n"
    )
    build_image("mine", Recipe(str(hostile), (str(make_wheel(tmp_path)),)), store)
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"resolv.conf": "the host's"}
    (step,) = (store.root / "steps").iterdir()
    assert {path.name: path.read_text() for path in (step / "root/moved").iterdir()} == {"resolv.conf": "the image's"}


def test_what_a_program_of_the_image_makes_another_users_is_so_in_the_image_alone(
    hostile: Path, store: Store, tmp_path: Path
) -> None:
    packages = site_packages(hostile)
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "sitecustomize.py").write_text(
        "import contextlib, os\n"
        "if not os.path.exists('/made'):\n"
        "    open('/made', 'w').close(); os.link('/made', '/twin'); os.chmod('/made', 0o6755)\n"
        "    os.mkdir('/closed'); open('/closed/file', 'w').close(); os.chmod('/closed', 0)\n"
        "    with contextlib.suppress(OSError): os.setxattr('/made', 'user.a', b'x')\n"
    )
    made = build_image("mine", Recipe(str(hostile), (str(make_wheel(tmp_path)),)), store)
    (step,) = (store.root / "steps").iterdir()
    modes = {name: stat.S_IMODE((step / "root" / name).stat().st_mode) for name in ("made", "twin", "closed")}
    assert modes == {"made": 0o755, "twin": 0o755, "closed": 0o700}
    assert os.listxattr(step / "root/made") == []
    table = Tree.load(step).table
    assert {name: table[name].mode for name in ("made", "closed")} == {"made": 0o6755, "closed": 0}
    argv = [need_program("debugfs", "to look"), "-R", "ls -l /", str(made.path)]
    shown = {line.split()[-1]: line.split()[1] for line in run(argv, purpose="looking").text.splitlines() if line}
    assert (shown["made"], shown["twin"], shown["closed"]) == ("106755", "106755", "40000")


@pytest.mark.parametrize("what", ["a link to nothing", "a file"])
def test_packages_get_into_an_image_whose_etc_is_no_directory(
    hostile: Path, store: Store, tmp_path: Path, what: str
) -> None:
    if what == "a file":
        (hostile / "etc").write_text("")
    else:
        (hostile / "etc").symlink_to("/not there")
    assert build_image("mine", Recipe(str(hostile), (str(make_wheel(tmp_path)),)), store).packages == ("tiny==1.0",)


@pytest.mark.parametrize("name", ["odd\udcff", "two\nlines"])
def test_a_project_whose_name_is_no_line_is_refused(system: Path, store: Store, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match="expected a directory whose name can be read"):
        build_image("mine", Recipe(str(system), project=tmp_path / name), store)


def test_a_project_replaces_what_the_image_has_in_its_place(hostile: Path, store: Store, tmp_path: Path) -> None:
    project = tmp_path / "mine"
    project.mkdir()
    (project / "new.py").write_text("")
    (hostile / "opt/project/mine").mkdir(parents=True)
    (hostile / "opt/project/mine/old.py").write_text("")
    made = build_image("mine", Recipe(str(hostile), project=project), store)
    run([need_program("debugfs", "to look"), "-R", f"rdump /opt {tmp_path}", str(made.path)], purpose="looking")
    assert os.listdir(tmp_path / "opt/project/mine") == ["new.py"]


@pytest.mark.parametrize(
    "said",
    ["'/../../..' + OUTSIDE", "'/usr/../..' + OUTSIDE", "'relative'", "''", "'/a' + chr(0)", "'/a' + chr(10) + 'b'"],
)
def test_a_python_that_says_that_packages_lie_elsewhere(hostile: Path, store: Store, tmp_path: Path, said: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    packages = site_packages(hostile)
    packages.mkdir(parents=True, exist_ok=True)
    code = f"import sysconfig\nOUTSIDE = {str(outside)!r}\nsysconfig.get_path = lambda *_: {said}\n"
    (packages / "sitecustomize.py").write_text(code)
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="expected its Python to say where it is"):
        build_image("mine", Recipe(str(hostile), project=tmp_path / "mine"), store)
    assert os.listdir(outside) == []


def test_what_an_installation_wrote_has_one_time_wherever_the_clock_was_set_meanwhile(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for name in ("kept", "changed"):
        (tmp_path / name).write_text(name)
    os.utime(tmp_path / "kept", (5e8, 5e8))
    before = installing._times(tree)
    for name, when in (("changed", 4e8), ("behind", 3e8), ("ahead", 5e9)):
        (tmp_path / name).write_text("new")
        os.utime(tmp_path / name, (when, when))
    installing._settle(tree, before)
    assert {path.name: path.stat().st_mtime for path in tmp_path.iterdir()} == {
        "kept": 5e8,
        "changed": EPOCH,
        "behind": EPOCH,
        "ahead": EPOCH,
    }
