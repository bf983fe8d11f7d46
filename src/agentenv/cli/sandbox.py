"""``agentenv sandbox``: machines to work in by hand, which go on until they are removed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentenv.cli.exits import guarded
from agentenv.cli.sandbox_exec import exec_
from agentenv.cli.sandbox_stop import stop

if TYPE_CHECKING:
    from agentenv.boxes.box import Sandbox

sandbox = typer.Typer(
    name="sandbox",
    help="Virtual machines to run programs in, copy files into, freeze and fork; they go on until rm.",
    rich_markup_mode=None,
    no_args_is_help=True,
)

_PLACE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*):(.*)", re.DOTALL)
Name = Annotated[str, typer.Argument(metavar="NAME", help="As agentenv sandbox ls shows it.")]
_AT_ONCE = 8
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def create(
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What to call it; also its host name.")
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", help="A name of agentenv image ls, or a file.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option("--runtime", metavar="NAME", help="firecracker or qemu; the first that works here.")
    ] = None,
    memory_mb: Annotated[int | None, typer.Option("--memory-mb", metavar="MB", help="RAM (default 512).")] = None,
    vcpu_count: Annotated[
        float | None, typer.Option("--vcpu-count", metavar="N", help="CPUs' worth of time (default 1).")
    ] = None,
    disk_mb: Annotated[
        int | None, typer.Option("--disk-mb", metavar="MB", help="Room for what is written (default 1024).")
    ] = None,
    kernel: Annotated[str | None, typer.Option("--kernel", metavar="KERNEL", help="A name or a file.")] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable for all programs; several are allowed.")
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", metavar="WORD", help="none, or internet: everything public (default none)."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option("--allow", metavar="ADDRESS", help="Open this alone, or with internet; several are allowed."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(
            "--deny", metavar="ADDRESS", help="Close this of what is open; alone, all that is public is open."
        ),
    ] = None,
    network_mbps: Annotated[
        float | None, typer.Option("--network-mbps", metavar="N", help="Most megabits a second in each direction.")
    ] = None,
    origin: Annotated[
        str | None, typer.Option("--from", metavar="SNAPSHOT", help="Bring back a snapshot instead: a name or an id.")
    ] = None,
    json_: Json = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="More log lines; twice: tracebacks.")] = 0,
) -> None:
    """Start a sandbox. It goes on until agentenv sandbox rm, the end of its keeper, or that of this machine.

    An ADDRESS is like 1.2.3.4, 10.0.0.0/8, 1.2.3.4:443 or udp://9.9.9.9:53. Networks need root and nftables.

    \b
    Examples:
      agentenv sandbox create --name web --memory-mb 512
      agentenv sandbox create --image mine --runtime qemu --env KEY=value
      agentenv sandbox create --network internet --deny 198.51.100.0/24 --network-mbps 20
      agentenv sandbox create --allow tcp://203.0.113.10:443 --allow udp://9.9.9.9:53
      agentenv sandbox create --from before-the-upgrade
    """
    from agentenv.boxes.commands import make_spec, new_name, read_name
    from agentenv.boxes.keeping import find, plan_of
    from agentenv.boxes.launch import launch
    from agentenv.boxes.plans import Plan
    from agentenv.cli.sandbox_options import check_files, check_runtime, check_sizes, in_options
    from agentenv.cli.sandbox_words import open_status, print_made, read_network, read_pairs
    from agentenv.errors import ConfigError, Problem

    given = {"memory_mb": memory_mb, "vcpu_count": vcpu_count, "disk_mb": disk_mb, "kernel": kernel, "image": image}
    told: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if origin is not None:
        others: dict[str, Any] = {"runtime": runtime, "env": env, "network": network, "allow": allow, "deny": deny}
        others["network_mbps"] = network_mbps
        if extra := [*told, *(key for key, value in others.items() if value not in (None, []))]:
            options = ", ".join(f"--{key.replace('_', '-')}" for key in extra)
            what = f"expected no {options} with --from: a snapshot is brought back as it was"
            raise ConfigError([Problem("command line", "--from", what)])
        with in_options():
            called = read_name(name) if name is not None else new_name()
        plan = plan_of(find(origin), called)
    else:
        told.setdefault("image", None)
        told["network"] = read_network(network, allow or (), deny or (), network_mbps)
        check_runtime(runtime)
        check_sizes(memory_mb=memory_mb, vcpu_count=vcpu_count, disk_mb=disk_mb)
        with in_options():
            spec = make_spec(name=name, env=read_pairs(env), network_mbps=network_mbps, **told)
        check_files(image, kernel)
        plan = Plan(runtime, {}, spec)
    with open_status(f"starting sandbox {plan.spec.id}", verbose) as report:
        (made,) = launch([plan], report)
    print_made([made.describe()], as_json=json_)


def ls(json_: Json = False) -> None:
    """List the sandboxes that agentenv sandbox create has made. What killed ones left is removed.

    One that ended on a fault of agentenv is named with its log, until rm.

    \b
    Examples:
      agentenv sandbox ls
      agentenv sandbox ls --json
    """
    from agentenv.boxes.box import Sandbox
    from agentenv.boxes.kept import last_words
    from agentenv.cli.sandbox_words import print_list
    from agentenv.cli.side_by_side import side_by_side

    # Those that do not answer are waited for together.
    found = side_by_side(lambda box: box.describe(), Sandbox.running(), _AT_ONCE)
    print_list(found, last_words(), as_json=json_)


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="NAME:PATH, or a path of this host.")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A path of this host, or NAME:PATH.")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="As whom in the sandbox; the image's own.")
    ] = None,
    json_: Json = False,
) -> None:
    """Copy a file or a directory into a sandbox, or out of one.

    As with cp -r, it is put into a directory that is there already. A path of this host that has a colon in it needs
    a slash before that: ./a:b.

    \b
    Examples:
      agentenv sandbox cp ./project web:/srv
      agentenv sandbox cp web:/var/log/app.log .
    """
    from agentenv.boxes.results import Copied
    from agentenv.cli.sandbox_options import in_options
    from agentenv.cli.sandbox_words import print_copied
    from agentenv.errors import ConfigError, Problem

    copied = Copied()
    places = [_PLACE.fullmatch(one) for one in (source, target)]
    if sum(place is not None for place in places) != 1:
        what = f"expected NAME:PATH once and a path of this host once, got {source!r} and {target!r}"
        raise ConfigError([Problem("command line", "SOURCE TARGET", what)])
    if bare := [one for one, place in zip((source, target), places, strict=True) if place is not None and not place[2]]:
        what = f"expected a path in the sandbox after the colon, got {bare[0]!r}"
        raise ConfigError(
            [Problem("command line", "SOURCE TARGET", what, f"such as {bare[0]}/tmp/ or {bare[0]}/root/")]
        )
    if places[1] is not None:
        with in_options(), _connect(places[1][1]) as box:
            box.copy_in(source, places[1][2], user=user, copied=copied)
    else:
        assert places[0] is not None
        with in_options(), _connect(places[0][1]) as box:
            box.copy_out(places[0][2], target, user=user, copied=copied)
    print_copied(copied, target, as_json=json_)


def pause(name: Name, json_: Json = False) -> None:
    """Have a sandbox stand still: it keeps its memory and uses no processor.

    \b
    Example:
      agentenv sandbox pause web
    """
    from agentenv.cli.sandbox_words import print_state

    with _connect(name) as box:
        box.pause()
        print_state(box.describe(), as_json=json_)


def resume(name: Name, json_: Json = False) -> None:
    """Let a paused sandbox go on.

    \b
    Example:
      agentenv sandbox resume web
    """
    from agentenv.cli.sandbox_words import print_state

    with _connect(name) as box:
        box.resume()
        print_state(box.describe(), as_json=json_)


def snapshot(
    name: Name,
    snapshot_name: Annotated[
        str | None, typer.Argument(metavar="SNAPSHOT", help="What to call it.", show_default=False)
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="An older one of this name loses it, instead of an error.")
    ] = False,
    json_: Json = False,
) -> None:
    """Keep memory, programs and files of a sandbox on disk; it goes on.

    agentenv sandbox create --from brings it back, agentenv snapshot lists and removes. One without a name is removed
    by agentenv snapshot gc.

    \b
    Example:
      agentenv sandbox snapshot web before-the-upgrade
    """
    from agentenv.cli.console import open_stdout, print_json, print_result
    from agentenv.cli.sandbox_options import in_options
    from agentenv.cli.sandbox_words import open_status

    with in_options({"name": "SNAPSHOT"}), _connect(name) as box, open_status(f"keeping sandbox {name}", 0):
        kept = box.snapshot(snapshot_name, replace=replace)
    if json_:
        record = {"id": kept.id, "name": kept.name, "kind": kept.kind, "stored_bytes": kept.stored_bytes}
        print_json({"sandbox": name, "snapshot": record})
        return
    print_result(
        open_stdout(),
        f"snapshot {kept.name or kept.id}: {kept.kind}, {kept.stored_bytes >> 20} MB",
        f"agentenv sandbox create --from {kept.name or kept.id[:12]}",
    )


def fork(
    name: Name,
    count: Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, help="How many copies.")] = 1,
    prefix: Annotated[
        str | None, typer.Option("--name", metavar="PREFIX", help="They become PREFIX-1, PREFIX-2, ...")
    ] = None,
    json_: Json = False,
) -> None:
    """Make copies of a sandbox as it is now, with its memory, programs and files; all go on.

    \b
    Examples:
      agentenv sandbox fork web
      agentenv sandbox fork web -n 3 --name try
    """
    from agentenv.cli.sandbox_options import in_options
    from agentenv.cli.sandbox_words import open_status, print_made

    with in_options(), _connect(name) as box, open_status(f"copying sandbox {name}", 0):
        made = box.fork(count, name=prefix)
    print_made([one.describe() for one in made], as_json=json_)


def rm(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="As agentenv sandbox ls shows them.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    json_: Json = False,
) -> None:
    """End sandboxes at once and free everything. Snapshots of them stay; stop lets programs end by themselves.

    Exits as for the first that could not be ended; the others are.

    \b
    Examples:
      agentenv sandbox rm web
      agentenv sandbox rm --all
    """
    from agentenv.boxes.box import Sandbox
    from agentenv.boxes.kept import forget, last_words
    from agentenv.cli.exits import exit_code
    from agentenv.cli.sandbox_words import open_status, print_removed
    from agentenv.cli.side_by_side import side_by_side
    from agentenv.errors import AgentEnvError, ConfigError, Problem

    if bool(names) == all_:
        raise ConfigError([Problem("command line", "NAME", "expected names, or --all; not both, not neither")])
    words, wanted = last_words(), list(dict.fromkeys(names or ()))
    ended = [name for name in words if all_ or name in wanted]
    found = Sandbox.running() if all_ else [Sandbox.connect(name) for name in wanted if name not in words]
    failed: dict[str, Exception] = {}

    def end(box: Sandbox) -> None:
        try:
            box.destroy()
        except (AgentEnvError, OSError) as error:
            failed[box.id] = error

    with open_status("ending sandboxes", 0):
        side_by_side(end, found, _AT_ONCE)
    for name in ended:
        forget(name)
    gone = {*ended, *(box.id for box in found)} - failed.keys()
    print_removed([name for name in (wanted or sorted(gone)) if name in gone], failed, as_json=json_)
    if failed:
        raise typer.Exit(exit_code(next(iter(failed.values()))))


def _connect(name: str) -> Sandbox:
    from agentenv.boxes.box import Sandbox

    return Sandbox.connect(name)


for command in (create, ls, cp, pause, resume, snapshot, fork, stop, rm):
    sandbox.command()(guarded(command))
sandbox.command(name="exec")(guarded(exec_))
