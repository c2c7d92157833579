"""`fedkin data`: which data sets are at hand, and what is in a federation made of one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.data.federated import FederatedData, Target, class_shares
from fedkin.data.images import Progress
from fedkin.data.scenarios import Scenario, load_scenario, paper_scenario, sample_federation
from fedkin.data.sources import DATA_SETS, data_directory, find, load_images, resolve
from fedkin.errors import InputError

app = typer.Typer(
    help="Which data sets are at hand, and what is in a federation before training on it."
)

DirectoryOption = Annotated[
    Path | None,
    typer.Option("--data", help="Directory with the data sets (default: FEDKIN_DATA)."),
]

HEART_DISEASE = "heart-disease"


@app.callback(invoke_without_command=True)
def list_data_sets(
    context: typer.Context, directory: DirectoryOption = None, json: JsonOption = False
) -> None:
    """List the data sets and whether they are at hand."""
    if context.invoked_subcommand is not None:
        if directory is not None or json:
            raise InputError(
                f"write options after the command: fedkin data {context.invoked_subcommand} …"
            )
        return
    root = data_directory(directory)
    rows = [_availability(name, directory) for name in DATA_SETS]
    rows.append(_tables_availability(root))
    if json:
        print_json({"data_directory": str(root) if root else None, "data_sets": rows})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("data set", "at hand", "what it is"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(row["name"], row["status"], row["summary"])
    results.print(table)
    unset = "FEDKIN_DATA is not set: it names the directory that holds mnist/, fashion-mnist/, …"
    notes.print(f"\nData directory: {root}" if root else f"\n{unset}", soft_wrap=True, markup=False)
    notes.print("Look into one: fedkin data show digits --setting 2", soft_wrap=True)


def _availability(name: str, directory: Path | None) -> dict[str, Any]:
    known = DATA_SETS[name]
    path = find(name, directory)
    if not known.directories:
        status = "yes"
    elif path is not None:
        status = "yes" if path.name == name else f"yes, as {path.name}"
    else:
        status = "from the hub" if known.hub_id else "no"
    return {
        "name": name,
        "at_hand": status.startswith("yes"),
        "status": status,
        "path": str(path) if path else None,
        "hub_id": known.hub_id,
        "summary": known.summary,
    }


def _tables_availability(root: Path | None) -> dict[str, Any]:
    path = root / HEART_DISEASE if root else None
    at_hand = path is not None and any(path.glob("processed.*.data"))
    return {
        "name": HEART_DISEASE,
        "at_hand": at_hand,
        "status": "yes" if at_hand else "no",
        "path": str(path) if at_hand else None,
        "hub_id": None,
        "summary": "tables of four hospitals, for fedkin fit",
    }


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A data set, a directory or a hub id (owner/name).")],
    setting: Annotated[
        str, typer.Option(help="1, 2, 3 or 4 of the paper, or a TOML file of your own.")
    ],
    target: Annotated[
        str, typer.Option(help="Whose distribution counts: minority or majority.")
    ] = ("minority"),
    seed: Annotated[int, typer.Option(help="The draw.")] = 0,
    minority_nodes: Annotated[int, typer.Option(help="Nodes of the minority.")] = 5,
    majority_nodes: Annotated[int, typer.Option(help="Nodes of the majority.")] = 10,
    train_size: Annotated[
        int | None, typer.Option(help="Images a node (default: the setting's).")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Directory for the picture and the description.")
    ] = Path("fedkin-data"),
    directory: DirectoryOption = None,
    json: JsonOption = False,
) -> None:
    """Draw nodes × classes and sample images of a federation to PNG and SVG."""
    # Imported here, because matplotlib takes a second and only this command needs it.
    from fedkin.report.federation_figure import draw_federation, save_figure

    if name == HEART_DISEASE:
        raise InputError(f"{HEART_DISEASE} holds tables, not images: see fedkin fit --help")
    resolve(name, directory)
    chosen = _read_setting(name, setting)
    with _progress_bar() as progress:
        source = load_images(name, directory, progress=progress)
    federation = sample_federation(
        source, chosen, _target(target), seed, minority_nodes, majority_nodes, train_size
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the directory {out}: {error.strerror}") from error
    figure = draw_federation(federation, chosen.merged_classes)
    png, svg = save_figure(figure, out / "federation")
    description = out / "federation.json"
    federation.description.save(description)
    if json:
        print_json(_answer(federation, chosen) | {"files": [str(png), str(svg), str(description)]})
        return
    _print_shares(federation, chosen)
    notes.print(f"\n{png}\n{svg}\n{description}", soft_wrap=True, markup=False)


def _target(text: str) -> Target:
    if text not in ("minority", "majority"):
        raise InputError(f"--target is {text!r}; it must be minority or majority")
    return text


def _read_setting(name: str, setting: str) -> Scenario:
    if setting.lstrip("-").isdigit():
        return paper_scenario(name, int(setting))
    if not setting.endswith(".toml"):
        raise InputError(f"--setting is {setting!r}; it must be 1, 2, 3, 4 or a .toml file")
    return load_scenario(Path(setting))


@contextmanager
def _progress_bar() -> Iterator[Progress]:
    """Decoding takes seconds the first time: show it on a terminal."""
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
    """What share of each holder's images was drawn from every merged class."""
    # Labels of the majority are permuted after the draw: undo it, to speak of what was drawn.
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
