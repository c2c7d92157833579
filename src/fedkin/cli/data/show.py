"""`fedkin data show`: a federation of images before any training."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from fedkin.cli.data.listing import TABLES
from fedkin.cli.data.show_partition import show_partition
from fedkin.cli.options import (
    PARTITION,
    TARGET,
    DataOption,
    OutOption,
    SeedOption,
    alternatives,
    was_given,
)
from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.data.bad_nodes import OF_DATA, BadNodes, with_bad_nodes
from fedkin.data.federated import FederatedData, Target, class_shares
from fedkin.data.images import Progress
from fedkin.data.labeled import load_labeled
from fedkin.data.partitions import choose_partition, split_nodes
from fedkin.data.partitions.named import PARTITIONS
from fedkin.data.partitions.split import TEST_FRACTION, VALIDATION_FRACTION
from fedkin.data.scenarios import Scenario, load_scenario, paper_scenario, sample_federation
from fedkin.data.sources import load_images, resolve
from fedkin.errors import InputError

PARTITION_PANEL = "Partitions: every node has its own training, validation and test data"


def _field(option: str, text: str) -> Any:
    return typer.Option(option, help=text, rich_help_panel=PARTITION_PANEL)


BAD_OPTIONS = ("bad_nodes", "bad_share")

PARTITION_OPTIONS = (
    *("nodes", "alpha", "minimum", "classes_per_node", "arrangement", "even", "column"),
    *("points_per_node", "test_fraction", "validation_fraction"),
)


def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A data set, a directory or a hub id (owner/name).")],
    setting: Annotated[
        str | None,
        typer.Option("--setting", help="1, 2, 3 or 4 of the paper, or a TOML file of your own."),
    ] = None,
    target: Annotated[str, TARGET] = "minority",
    seed: SeedOption = 0,
    minority_nodes: Annotated[
        int, typer.Option("--minority-nodes", help="How many nodes the minority has.")
    ] = 5,
    majority_nodes: Annotated[
        int, typer.Option("--majority-nodes", help="How many nodes the majority has.")
    ] = 10,
    train_size: Annotated[
        int | None,
        typer.Option("--train-size", help="Images per node; default: as the setting says."),
    ] = None,
    bad: Annotated[
        str | None,
        typer.Option("--bad", help=f"What is wrong with some nodes: {alternatives(OF_DATA)}."),
    ] = None,
    bad_nodes: Annotated[
        str | None,
        typer.Option("--bad-nodes", help="Their names, such as minority-4,minority-5."),
    ] = None,
    bad_share: Annotated[
        float | None,
        typer.Option("--bad-share", help="The share of their rows that is changed; default: all."),
    ] = None,
    partition: Annotated[str | None, PARTITION] = None,
    nodes: Annotated[int | None, _field("--nodes", "How many nodes there are.")] = None,
    alpha: Annotated[
        float | None, _field("--alpha", "Dirichlet: the smaller, the fewer classes a node has.")
    ] = None,
    minimum: Annotated[
        int | None, _field("--minimum", "The fewest rows of a node (dirichlet: 10, natural: 1).")
    ] = None,
    classes_per_node: Annotated[
        int | None, _field("--classes-per-node", "Pathological: how many classes a node has.")
    ] = None,
    arrangement: Annotated[
        str | None,
        _field("--arrangement", "Pathological: blocks of nodes share their classes, or random."),
    ] = None,
    even: Annotated[
        bool | None,
        _field("--even/--uneven", "Pathological: whether nodes share a class in equal parts."),
    ] = None,
    column: Annotated[
        str | None, _field("--column", "Natural: the column that says whose a row is.")
    ] = None,
    points_per_node: Annotated[
        int | None, _field("--points-per-node", "Groups: how many rows a node has.")
    ] = None,
    test_fraction: Annotated[
        float, _field("--test-fraction", "The share of a node's rows for testing.")
    ] = TEST_FRACTION,
    validation_fraction: Annotated[
        float, _field("--validation-fraction", "The share of the others for validation.")
    ] = VALIDATION_FRACTION,
    out: OutOption = Path("fedkin-data"),
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Draw which node has which classes, and sample images, to PNG and SVG."""
    if name == TABLES:
        raise InputError(f"{TABLES} has tables, not images: see fedkin fit --help")
    if partition is None:
        useless = was_given(context, *PARTITION_OPTIONS)
        if useless:
            raise InputError(f"{useless[0]} is of no use without --partition")
        if setting is None:
            raise InputError(
                "say how the data are divided: --setting 1, 2, 3 or 4 (or a TOML file), or --partition "
                f"{alternatives(list(PARTITIONS))}"
            )
        if bad is None and (useless := was_given(context, *BAD_OPTIONS)):
            raise InputError(f"{useless[0]} is of no use without --bad")
        badness = None if bad is None else _read_bad(bad, bad_nodes, bad_share)
        resolve(name, data)
        chosen = _read_setting(name, setting)
        with _progress_bar() as progress:
            source = load_images(name, data, progress=progress)
        federation = sample_federation(
            source, chosen, cast(Target, target), seed, minority_nodes, majority_nodes, train_size
        )
        if badness is not None:
            federation = with_bad_nodes(federation, badness, seed)
        _show_federation(federation, chosen, badness, out, json=json)
        return
    useless = was_given(context, "target", "train_size", "bad", *BAD_OPTIONS)
    if useless:
        raise InputError(f"{useless[0]} is of no use with --partition: every node is an owner")
    given = {
        "nodes": nodes,
        "alpha": alpha,
        "minimum": minimum,
        "classes_per_node": classes_per_node,
        "arrangement": arrangement,
        "even": even,
        "column": column,
        "points_per_node": points_per_node,
        "setting": int(setting) if setting is not None and _is_number(setting) else setting,
        "minority_nodes": minority_nodes if was_given(context, "minority_nodes") else None,
        "majority_nodes": majority_nodes if was_given(context, "majority_nodes") else None,
    }
    given = {field: value for field, value in given.items() if value is not None}
    divided = choose_partition(partition, given, name, write=_as_option)
    resolve(name, data)
    with _progress_bar() as progress:
        labeled = load_labeled(name, data, column=column, progress=progress)
    split = split_nodes(
        labeled,
        divided,
        seed,
        test_fraction=test_fraction,
        validation_fraction=validation_fraction,
    )
    _make_directory(out)
    show_partition(labeled, divided, split, seed, out, json=json)


def _as_option(field: str) -> str:
    return "--" + field.replace("_", "-")


def _is_number(setting: str) -> bool:
    return setting.lstrip("-").isdigit()


def _make_directory(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the directory {out}: {error.strerror}") from error


def _read_bad(kind: str, nodes: str | None, share: float | None) -> BadNodes:
    if kind not in OF_DATA:
        raise InputError(
            f"--bad is {kind!r}; it must be {alternatives(OF_DATA)} (other kinds change no data)"
        )
    if nodes is None:
        raise InputError("--bad needs --bad-nodes, such as --bad-nodes minority-4,minority-5")
    names = tuple(name.strip() for name in nodes.split(","))
    if share is not None and not 0 < share <= 1:
        raise InputError(f"--bad-share is {share:g}; it must be above 0 and at most 1")
    if len(set(names)) < len(names):
        raise InputError(f"--bad-nodes {nodes} names one node twice")
    return BadNodes(kind=cast(Any, kind), nodes=names, share=share)


def _show_federation(
    federation: FederatedData, chosen: Scenario, bad: BadNodes | None, out: Path, *, json: bool
) -> None:
    # Imported here, because matplotlib takes a second and only this command needs it.
    from fedkin.report.federation_figure import draw_federation, save_figure

    _make_directory(out)
    figure = draw_federation(federation, chosen.merged_classes)
    png, svg = save_figure(figure, out / "federation")
    description = out / "federation.json"
    federation.description.save(description)
    if json:
        files = [str(png), str(svg), str(description)]
        told = None if bad is None else bad.model_dump(exclude_none=True)
        answer = _answer(federation, chosen) | {"bad": told, "files": files}
        print_json(answer, schema="data.show/1")
        return
    _print_shares(federation, chosen)
    if bad is not None:
        results.print(
            f"Bad: {bad.title} ({', '.join(bad.nodes)}), whose labels count above as they are now",
            soft_wrap=True,
            markup=False,
        )
    notes.print(f"\n{png}\n{svg}\n{description}", soft_wrap=True, markup=False)


def _read_setting(name: str, setting: str) -> Scenario:
    if _is_number(setting):
        return paper_scenario(name, int(setting))
    if not setting.endswith(".toml"):
        raise InputError(f"--setting is {setting!r}; it must be 1, 2, 3, 4 or a .toml file")
    return load_scenario(Path(setting))


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """Show on a terminal how far the decoding is, which takes seconds the first time."""
    columns = (TextColumn("reading {task.description}"), BarColumn(), MofNCompleteColumn())
    disable = not notes.is_terminal
    with ProgressBar(*columns, console=notes, transient=True, disable=disable) as bar:
        tasks: dict[str, Any] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield report


def _merged_shares(federation: FederatedData, setting: Scenario) -> dict[str, list[float]]:
    """Return which share of each holder's images was drawn from every merged class."""
    # Labels of the majority are permuted after the draw: undo it, to show what was drawn.
    names = [*federation.names, "validation", "test"]
    groups = [node.group for node in federation.description.nodes]
    groups += [federation.description.target] * 2
    permutation = federation.description.permutation
    shares = {}
    for name, group, row in zip(names, groups, class_shares(federation), strict=True):
        drawn = row[list(permutation)] if group == "majority" else row
        shares[name] = [float(drawn[list(merged)].sum()) for merged in setting.merged_classes]
    return shares


def _answer(federation: FederatedData, setting: Scenario) -> dict[str, Any]:
    description = federation.description
    return {
        "source": description.source,
        "setting": description.setting,
        "target": description.target,
        "seed": description.seed,
        "rotation": description.rotation,
        "permutation": {
            str(label): to for label, to in enumerate(description.permutation) if to != label
        },
        "classes": list(federation.classes),
        "merged_classes": [list(merged) for merged in setting.merged_classes],
        "images": {
            **{
                name: len(labels)
                for name, (_, labels) in zip(federation.names, federation.nodes, strict=True)
            },
            "validation": len(federation.validation[1]),
            "test": len(federation.test[1]),
        },
        "merged_class_shares": _merged_shares(federation, setting),
    }


def _print_shares(federation: FederatedData, setting: Scenario) -> None:
    answer = _answer(federation, setting)
    results.print(
        f"{answer['setting']}, target {answer['target']}, seed {answer['seed']}",
        style="bold",
        soft_wrap=True,
        markup=False,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("holder")
    table.add_column("images", justify="right")
    for number in range(1, len(setting.merged_classes) + 1):
        table.add_column(f"C{number}", justify="right")
    for name, shares in answer["merged_class_shares"].items():
        images = f"{answer['images'][name]:,}"
        table.add_row(name, images, *(f"{100 * share:.1f}%" for share in shares))
    results.print(table)
    for number, merged in enumerate(setting.merged_classes, start=1):
        names = ", ".join(federation.classes[label] for label in merged)
        results.print(f"C{number}: {names}", soft_wrap=True, markup=False)
    changes = []
    if answer["permutation"]:
        moves = ", ".join(f"{label}→{to}" for label, to in answer["permutation"].items())
        changes.append(f"labels {moves}")
    if answer["rotation"]:
        changes.append(f"images turned {answer['rotation']} by 90 degrees")
    if changes:
        results.print(f"In the majority: {'; '.join(changes)}", soft_wrap=True, markup=False)
