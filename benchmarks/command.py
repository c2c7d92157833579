"""`python -m benchmarks`: the engine against a plain PyTorch loop; `crowd`: large federations."""

import importlib.util
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.errors import InputError

if TYPE_CHECKING:
    from benchmarks.contests import Outcome
    from benchmarks.work import Limits

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SCALES = (15, 150, 1500)
"""Numbers of nodes to show how time and memory grow."""


@app.callback(invoke_without_command=True)
def bench(
    context: typer.Context,
    network: Annotated[
        list[str] | None,
        typer.Option(help="Fashion-MNIST or CIFAR-10; both if not given. May be repeated."),
    ] = None,
    points: Annotated[int, typer.Option(min=50, help="Images per node, a multiple of 50.")] = 4000,
    repeats: Annotated[
        int, typer.Option(min=1, help="Timed turns of each side; the median counts.")
    ] = 3,
    outer: Annotated[
        int, typer.Option(min=1, help="Outer iterations of the whole run (the paper's: 20).")
    ] = 5,
    scaling: Annotated[
        bool, typer.Option(help="Also measure many nodes, memory and compilation.")
    ] = True,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the times to this file (.svg, .png or .pdf).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Time fedkin's engine against a plain PyTorch loop over nodes, in turns, in this process."""
    if context.invoked_subcommand is not None:
        return
    if points % 50:
        raise InputError(f"--points {points} is no multiple of 50, the size of a mini-batch")
    if plot is not None and plot.suffix not in (".svg", ".png", ".pdf"):
        raise InputError(f"--plot {plot}: the name must end in .svg, .png or .pdf")
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "the benchmark compares with PyTorch, which is not installed: run `make bench`, or "
            "pip install '.[bench]' in the repository"
        )
    # Heavy imports, and PyTorch is an extra.
    from benchmarks import contests, work
    from benchmarks.engine import time_paper_run
    from benchmarks.figure import draw_outcomes
    from benchmarks.problem import NETWORKS, BenchProblem

    for name in network or ():
        if name not in NETWORKS:
            raise InputError(f"--network {name!r} is unknown; choose one of {', '.join(NETWORKS)}")
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    limits = work.measure_limits(cores)
    outcomes, runs, threads = [], {}, {}
    for name in network or NETWORKS:
        problem = BenchProblem(name, points=points)
        listed = contests.Contests(problem)
        threads[name] = contests.choose_threads(problem, listed.loop, cores)
        for contest in listed:
            notes.print(f"{name}: {contest.name} …")
            outcomes.append(contests.run_contest(problem, contest, limits, repeats))
        notes.print(f"{name}: {outer} outer iterations of a whole run …")
        done = time_paper_run(listed.engine, outer)
        torch_step = next(o.torch_seconds for o in outcomes if o.network == name)
        runs[name] = asdict(done) | {"share": done.seconds / (done.steps * torch_step)}
    answer: dict[str, Any] = {
        "cores": cores,
        "torch_threads": threads,
        "matmul_gigaflops": limits.flops / 1e9,
        "bandwidth_gigabytes": limits.bandwidth / 1e9,
        "contests": [asdict(outcome) | {"ratio": outcome.ratio} for outcome in outcomes],
        "runs": runs,
    }
    if scaling:
        answer |= _probes()
    if plot is not None:
        draw_outcomes(outcomes, plot)
        notes.print(f"wrote {plot}")
    if json:
        print_json(answer, schema="bench/1")
        return
    _show(answer, outcomes, limits)


@app.command()
def crowd(
    nodes: Annotated[int, typer.Option(min=20, help="Nodes in the federation.")] = 1500,
    kin: Annotated[int, typer.Option(min=1, help="How many of them are like the owner.")] = 10,
    steps: Annotated[
        int, typer.Option(min=7, help="Outer steps of each run; those after the fifth count.")
    ] = 20,
    points: Annotated[int, typer.Option(min=50, help="Images per node.")] = 200,
    json: JsonOption = False,
) -> None:
    """Time outer steps where few of many nodes are like the owner, and where all are asked anyway."""
    if kin >= nodes:
        raise InputError(f"--kin {kin} must be fewer than --nodes {nodes}")
    # Heavy imports.
    from benchmarks.crowd import time_crowd

    found = time_crowd(nodes, kin, steps, points, on_step=notes.print)
    some, everyone = found.medians
    if json:
        medians = {"median_seconds": some, "median_seconds_asking_all": everyone}
        print_json(asdict(found) | medians | {"share": found.share}, schema="crowd/1")
        return
    results.print(
        f"{nodes} nodes, {kin} of them like the owner: after the fifth, an outer step took {some:.3f} s "
        f"in the median, and {everyone:.2f} s where all nodes were asked: {found.share:.3f} of it."
    )


def _probes() -> dict[str, Any]:
    from benchmarks.probe import probe

    scales = []
    for nodes in SCALES:
        notes.print(f"{nodes} nodes of 400 images …")
        scales.append(probe({"probe": "scaling", "nodes": nodes, "points": 400}))
    compilation = {}
    for name in ("Fashion-MNIST", "CIFAR-10"):
        notes.print(f"{name}: compilation, and a second start …")
        with tempfile.TemporaryDirectory() as cache:
            settings = {"probe": "compilation", "network": name, "cache": cache}
            compilation[name] = {"first": probe(settings), "second": probe(settings)}
    return {"scaling": scales, "compilation": compilation}


def _show(answer: dict[str, Any], outcomes: list["Outcome"], limits: "Limits") -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("network", "computation"):
        table.add_column(heading)
    for heading in ("fedkin", "PyTorch", "ratio", "points/s", "matmul", "memory", "difference"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        table.add_row(
            outcome.network,
            outcome.name,
            f"{outcome.fedkin_seconds * 1e3:.2f} ms",
            f"{outcome.torch_seconds * 1e3:.1f} ms",
            f"{outcome.ratio:.1f}",
            f"{outcome.points_per_second:,.0f}",
            f"{outcome.matmul_share:.1%}",
            f"{outcome.bandwidth_share:.1%}",
            f"{outcome.difference:.0e}",
        )
    results.print(table)
    results.print(
        f"\nmatmul: the share of {limits.flops / 1e9:.0f} Gflop/s, memory: of "
        f"{limits.bandwidth / 1e9:.1f} GB/s, both measured on {answer['cores']} cores. difference: of the "
        "numbers both computed, relative."
    )
    for name, done in answer["runs"].items():
        results.print(
            f"{name}: {done['outer_iterations']} outer iterations with evaluation took "
            f"{done['seconds']:.1f} s for {done['steps']} steps: {done['share']:.4f} of as many "
            "PyTorch SVRG steps."
        )
    for scale in answer.get("scaling", ()):
        results.print(
            f"{scale['nodes']} nodes: {scale['node_step_microseconds']:.0f} µs per node and step, "
            f"{scale['peak_megabytes']:.0f} MB at most for {scale['data_megabytes']:.0f} MB of images."
        )
    for name, both in answer.get("compilation", {}).items():
        parts = ", ".join(f"{n} {s:.1f} s" for n, s in both["first"]["seconds"].items())
        results.print(
            f"{name}: first calls with compilation: {parts}; a second process, from its start to its "
            f"end, with all of them: {both['second']['process_seconds']:.1f} s."
        )
