"""Root file systems: made from a source in steps that are kept, and given a name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agentenv import locks
from agentenv.errors import ConfigError, Problem, RuntimeUnavailable
from agentenv.images import installing
from agentenv.images.content import key_of
from agentenv.images.copying import Copier
from agentenv.images.ext4 import make_ext4
from agentenv.images.fetching import build_dockerfile, fetch_debian, fetch_oci, open_archive
from agentenv.images.files import remove_tree
from agentenv.images.image import FILE, KIND, Image, read_start, write_start
from agentenv.images.inodes import EPOCH
from agentenv.images.inside import make_parents, parts_of, resolve
from agentenv.images.layers import Layer
from agentenv.images.oci import OciImage, Start, unpack
from agentenv.images.progress import LINES, Report
from agentenv.images.source import Source, parse_source, why_not
from agentenv.images.steps import step
from agentenv.images.store import Store, check_name
from agentenv.images.trees import Tree, digest_tree, take_in

# Part of every key: raised when the same ingredients give something else than before.
_FORMAT = 1
_DEBIAN_PACKAGES = ["python3"]
# pip needs distutils of a Python older than 3.10, and Debian keeps most of it in a package of its own.
_OLDER = {suite: [*_DEBIAN_PACKAGES, "python3-distutils"] for suite in ("bullseye", "oldoldstable")}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made of.

    Attributes:
        source: As ``--from`` has it.
        pip: Packages to install.
        project: A directory to copy, importable.
        size_mb: Of the image; None measures it.
        mirror: Where Debian's packages come from; None is the usual place.
        fresh: Whether finished steps are done again.
    """

    source: str
    pip: tuple[str, ...] = ()
    project: Path | None = None
    size_mb: int | None = None
    mirror: str | None = None
    fresh: bool = False


def build_image(name: str, recipe: Recipe, store: Store, report: Report = LINES) -> Image:
    """Make an image and give it a name; what was made before is found again.

    Raises:
        ConfigError: The recipe is wrong.
        RuntimeUnavailable: A program is missing or fails; says which and why.
        ProtocolError: The source is damaged or hostile.
        ResourceLimit: The disk is full.
    """
    check_name(name)
    source = parse_source(recipe.source)
    if recipe.project is not None and not os.path.isdir(recipe.project):
        message = f"expected a directory, got {str(recipe.project)[:200]!r}{why_not(recipe.project)}"
        raise ConfigError([Problem("command line", "--project", message)])
    with store.work() as work:
        return _Build(name, source, recipe, store, report, work).run()


@dataclass(slots=True)
class _Build:
    name: str
    source: Source
    recipe: Recipe
    store: Store
    report: Report
    work: Path

    def run(self) -> Image:
        with self._base() as (key, place):
            start = read_start(place)
            if self.recipe.pip:
                pinned = installing.pin(self.recipe.pip)
                key = key_of("pip", _FORMAT, key, pinned)
                with step(
                    self.store,
                    key,
                    lambda out: self._install(place, out, start),
                    what="the same packages",
                    report=self.report,
                    again=self.recipe.fresh,
                ) as installed:
                    return self._finish(key, installed, start)
            return self._finish(key, place, start)

    @contextmanager
    def _base(self) -> Iterator[tuple[str, Path]]:
        """The key and the place of the tree of the source alone."""
        source, report = self.source, self.report
        if source.kind == "directory":
            place = self.work / "tree"
            place.mkdir()
            tree = Tree.make(place)
            with report.task(f"copying {source.value}"):
                self._tell(take_in(Path(source.value), tree, self.store.own))
                tree.save()
                key = key_of("directory", _FORMAT, digest_tree(tree.root, tree.table, times=True))
            yield key, place
        elif source.kind == "debian":
            packages = _OLDER.get(source.value, _DEBIAN_PACKAGES)
            key = key_of("debian", _FORMAT, source.value, packages, self.recipe.mirror, os.uname().machine)
            with step(self.store, key, self._debian, what=str(source), report=report, again=self.recipe.fresh) as place:
                yield key, place
        else:
            # Layers must stay while they are read.
            with locks.locked(self.store.root / "locks/layers", shared=True):
                image = self._layers()
                key = key_of("oci", _FORMAT, image.digest)
                with step(
                    self.store,
                    key,
                    lambda out: self._unpack(image, out),
                    what=str(source),
                    report=report,
                    again=self.recipe.fresh,
                ) as place:
                    yield key, place

    def _layers(self) -> OciImage:
        if self.source.kind == "oci":
            return fetch_oci(self.source.value, self.store.blobs, self.work, self.report)
        file = Path(self.source.value)
        if self.source.kind == "dockerfile":
            file = build_dockerfile(file, self.work, self.report)
        return open_archive(file, self.store.blobs, self.work, self.report)

    def _debian(self, out: Path) -> None:
        archive = out.parent / "debian.tar"
        packages = _OLDER.get(self.source.value, _DEBIAN_PACKAGES)
        fetch_debian(self.source.value, packages, archive, self.report, mirror=self.recipe.mirror)
        tree = Tree.make(out)
        with self.report.task("unpacking", archive.stat().st_size), open(archive, "rb") as stream:
            layer = Layer(tree)
            layer.apply(stream)
        self._tell(layer.notes)
        tree.save()
        write_start(out, Start({}))

    def _unpack(self, image: OciImage, out: Path) -> None:
        tree = Tree.make(out)
        self._tell(unpack(image, tree, self.report))
        tree.save()
        write_start(out, image.start)

    def _install(self, place: Path, out: Path, start: Start) -> None:
        tree = Tree.load(place).copy(out)
        installing.install(tree, self.recipe.pip, self.report, path=start.env.get("PATH"))
        tree.save()

    def _finish(self, key: str, place: Path, start: Start) -> Image:
        tree = Tree.load(place)
        if self.recipe.project is not None:
            copy = self.work / "project"
            copy.mkdir()
            tree = tree.copy(copy)
            with self.report.task(f"copying {self.recipe.project}"):
                key = key_of("project", _FORMAT, key, self._project(tree, self.recipe.project.absolute(), start))
        key = key_of("image", _FORMAT, key, self.recipe.size_mb)

        def make(out: Path) -> None:
            with self.report.task("making the image"):
                make_ext4(tree.root, out / FILE, label="rootfs", table=tree.table, size_mb=self.recipe.size_mb)

        path, fd = self._made(key, make)
        try:
            image = Image(
                path=path,
                digest=path.parent.name,
                name=self.name,
                start=start,
                source=str(self.source),
                packages=tuple(installing.installed(tree)),
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                size_bytes=path.stat().st_size,
            )
            self.store.name(KIND, self.name, image.digest, image.to_json())
        finally:
            os.close(fd)
        return image

    def _made(self, key: str, make: Callable[[Path], None]) -> tuple[Path, int]:
        """The image of a key, and what holds it."""
        # Somebody may take its last name away just then; or its file is gone, and nobody has noticed.
        for again in (self.recipe.fresh, False, True):
            path = self.store.once(key, make, what="the same image", report=self.report, again=again) / FILE
            with contextlib.suppress(FileNotFoundError):
                return path, self.store.hold(path)
        raise RuntimeUnavailable(f"expected the image {path} to stay where it is, and somebody removes it", "try again")

    def _project(self, tree: Tree, project: Path, start: Start) -> str:
        """Copy a project into a tree and make it importable; returns its digest."""
        python = installing.find_python(tree, "--project", start.env.get("PATH"))
        name = (project if project.name != ".." else project.resolve()).name or "project"
        if not name.isprintable():  # on a line of a file that Python reads as UTF-8
            message = f"expected a directory whose name can be read, got {name!r}"
            raise ConfigError([Problem("command line", "--project", message, "rename it")])
        home = f"opt/project/{name}"
        place = _clear(tree, home)
        copier = Copier("--project", hidden=frozenset(map(os.path.realpath, self.store.own)))
        copier.copy(project, place)
        self._tell(copier.notes)
        lines = [f"/{home}"] + ([f"/{home}/src"] if (project / "src").is_dir() else [])
        pth = _clear(tree, f"{python.packages}/project-{name}.pth")
        with open(pth, "x", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        os.utime(pth, (EPOCH, EPOCH))
        return key_of(home, digest_tree(place))

    def _tell(self, notes: list[str]) -> None:
        for note in notes[:10]:
            self.report.say(note)
        if len(notes) > 10:
            self.report.say(f"... and {len(notes) - 10} more notes like these")


def _clear(tree: Tree, name: str) -> Path:
    """Where a path of the image lies on this disk, with nothing there and real directories above it.

    The image's links lead within the image, not to what this host has under the same name.
    """
    path = resolve(tree.root, parts_of(name))
    make_parents(tree.root, path)
    place = tree.root / path
    if os.path.lexists(place):
        remove_tree(place)
    tree.forget(path)
    return place
