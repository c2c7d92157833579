"""`python -m benchmarks`: the engine against a PyTorch loop; for the others see `--help`."""

import importlib.util
import os
import tempfile
from collections.abc import Callable
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
    _need("torch")
    # Heavy imports, and PyTorch is an extra.
    from benchmarks import contests, work
    from benchmarks.engine import time_paper_run
    from benchmarks.figure import draw_outcomes
    from benchmarks.problem import NETWORKS, BenchProblem

    for name in network or ():
        if name not in NETWORKS:
            raise InputError(f"--network {name!r} is unknown; choose one of {', '.join(NETWORKS)}")
    cores = _cores()
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
def larger(
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="Fashion-MNIST, CIFAR-10, cnn-fedavg, 'cnn-fedavg in Flax' or resnet; all if not given."
        ),
    ] = None,
    nodes: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Numbers of nodes; 20 and 100 if not given. May be repeated."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Local steps of a round; 20 for the paper's networks and 2 for larger ones."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Timed turns of each side; the median counts.")
    ] = 3,
    memory: Annotated[
        bool, typer.Option(help="Also measure memory and compilation, in separate processes.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Time a gradient and a Hessian-vector product by both engines and by the PyTorch loop."""
    _need("torch", "flax")
    # Heavy imports, and both are extras.
    from benchmarks import contests, work
    from benchmarks.larger import LARGER, LargerContests, LargerProblem
    from benchmarks.probe import probe

    for name in network or ():
        if name not in LARGER:
            raise InputError(f"--network {name!r} is unknown; choose one of {', '.join(LARGER)}")
    limits = work.measure_limits(_cores())
    rows: list[dict[str, Any]] = []
    for name in network or LARGER:
        for count in nodes or (20, 100):
            problem = LargerProblem(name, nodes=count)
            listed = LargerContests(problem, steps)
            threads = contests.choose_threads(problem, listed.loop, _cores())
            for contest in listed:
                notes.print(f"{name}, {count} nodes: {contest.name} …")
                outcome = contests.run_contest(problem, contest, limits, repeats)
                ratios = {"ratio": outcome.ratio, "module_ratio": outcome.module_ratio}
                rows.append(asdict(outcome) | ratios | {"nodes": count})
                notes.print(_one_line(rows[-1]))
            rows[-1] |= {"torch_threads": threads}
            if memory:
                notes.print(f"{name}, {count} nodes: memory and compilation …")
                rows[-1] |= {"memory": _larger_probes(probe, name, count)}
    answer = {"cores": _cores(), "matmul_gigaflops": limits.flops / 1e9, "contests": rows}
    if json:
        print_json(answer, schema="bench-larger/1")
        return
    _show_larger(answer)


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


@app.command()
def everyone(
    federation: Annotated[
        str,
        typer.Argument(
            help="digits or fashion-mnist: the 15 nodes of setting 2; crowd: 100 nodes in ten groups."
        ),
    ],
    synchronizations: Annotated[int, typer.Option(min=1, help="The budget of each owner.")] = 60,
    json: JsonOption = False,
) -> None:
    """Time all owners of a federation together, and single ones."""
    # Heavy imports.
    from benchmarks.everyone import MODELS, RUNS, time_everyone

    if federation not in MODELS:
        raise InputError(f"{federation!r} is unknown; choose one of {', '.join(MODELS)}")
    found = time_everyone(federation, synchronizations, on_run=notes.print)
    if json:
        print_json(
            asdict(found)
            | {
                "ratio": found.ratio,
                "processor_ratio": found.processor_ratio,
                "first_ratio": found.first_ratio,
            },
            schema="bench-everyone/1",
        )
        return
    if RUNS[federation] == 1:
        results.print("one run each: all times are with compilation")
    for name, timing in found.single.items():
        results.print(
            f"{name} alone: {timing.seconds:.2f} s ({timing.processor_seconds:.2f} s of the processor), "
            f"{timing.synchronizations} synchronizations; the first time {timing.first_seconds:.1f} s"
        )
    together = found.everyone
    results.print(
        f"all {found.nodes}: {together.seconds:.2f} s ({together.processor_seconds:.2f} s of the processor), "
        f"{together.synchronizations} synchronizations, where the slowest owner alone needs {found.slowest}; "
        f"the first time {together.first_seconds:.1f} s. {found.ratio:.1f} times the time of one "
        f"({found.processor_ratio:.1f} times its processor time), with compilation {found.first_ratio:.1f}. "
        f"Every owner gives at least {100 * found.within:.1f}% of its weight to its group. "
        f"{found.megabytes:,.0f} MB at most."
    )


@app.command("fit")
def whole_fit(
    nodes: Annotated[int, typer.Option(min=2, help="Nodes in the federation.")] = 20,
    similar: Annotated[int, typer.Option(min=1, help="How many of them are like the owner.")] = 7,
    points: Annotated[int, typer.Option(min=50, help="Images per node.")] = 400,
    synchronizations: Annotated[int, typer.Option(min=1, help="When to stop.")] = 100,
    json: JsonOption = False,
) -> None:
    """Run `fedkin.fit` with `cnn-fedavg` on Fashion-MNIST: weights, accuracy, memory and time."""
    if similar >= nodes:
        raise InputError(f"--similar {similar} must be fewer than --nodes {nodes}")
    # Heavy imports.
    from benchmarks.whole_fit import fit_whole

    found = fit_whole(nodes, similar, points, synchronizations, on_step=notes.print)
    if json:
        print_json(asdict(found), schema="whole-fit/1")
        return
    results.print(
        f"{found.synchronizations} synchronizations in {found.seconds:.0f} s ({found.stopped}). The "
        f"{found.similar_nodes} nodes like the owner have {found.similar_weight:.3f} of the weight; accuracy "
        f"{found.accuracy:.3f}; {found.peak_megabytes:,.0f} MB at most."
    )
    results.print(", ".join(f"{name} {weight:.3f}" for name, weight in found.weights.items()))


@app.command("federation")
def whole_federation(
    nodes: Annotated[int, typer.Option(min=2, max=64, help="Nodes in the federation.")] = 4,
    parameters: Annotated[
        int | None,
        typer.Option(
            min=1_000,
            help="About how many parameters the model has; logistic regression (650) if not given.",
        ),
    ] = None,
    synchronizations: Annotated[int, typer.Option(min=5, help="The run's budget.")] = 30,
    plain_sums: Annotated[
        bool, typer.Option("--plain-sums", help="Let nodes send vectors that are not masked.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Run the README's trial over Flower: seconds, HTTP requests and objects per synchronization."""
    _need("flwr")
    # Heavy imports, and Flower is an extra.
    from benchmarks.federation import as_record, time_federation

    with tempfile.TemporaryDirectory() as directory:
        found = time_federation(
            Path(directory),
            nodes,
            parameters,
            synchronizations,
            on_step=notes.print,
            plain_sums=plain_sums,
        )
    if json:
        print_json(as_record(found), schema="bench-federation/1")
        return
    results.print(
        f"{nodes} nodes, {len(found.seconds)} synchronizations: {found.median:.2f} s each in the median, "
        f"{found.percentile:.2f} s at the 90th percentile; {found.requests:.0f} HTTP requests to the "
        f"SuperLink, {found.objects:.0f} objects and {found.megabytes:.2f} MB per synchronization. The run "
        f"took {found.run_seconds:.1f} s after up."
    )
    for path, number in found.requests_by_path.items():
        results.print(f"  {path}: {number:.1f}")
    held = ", ".join(f"{kind} {megabytes:,.0f} MB" for kind, megabytes in found.memory.items())
    results.print(f"At most held at a time, by one process of its kind: {held}.")


def _need(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"the benchmark needs {package}, which is not installed: run `make bench`, or "
                "pip install '.[bench]' in the repository"
            )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _larger_probes(probe: Callable[..., dict[str, Any]], name: str, nodes: int) -> dict[str, Any]:
    """Measure the memory of all sides, and the compilation of a first and a second process."""
    settings = {"probe": "larger", "network": name, "nodes": nodes}
    with tempfile.TemporaryDirectory() as cache:
        first = probe(settings | {"side": "fedkin", "cache": cache})
        second = probe(settings | {"side": "fedkin", "cache": cache})
    module, torch = (probe(settings | {"side": s, "cache": None}) for s in ("module", "torch"))
    return {
        "fedkin_megabytes": first["peak_megabytes"],
        "module_megabytes": module["peak_megabytes"],
        "torch_megabytes": torch["peak_megabytes"],
        "first_call_seconds": first["first_call_seconds"],
        "second_process_seconds": second["first_call_seconds"],
    }


def _one_line(row: dict[str, Any]) -> str:
    """Say what one contest found, as soon as it has."""
    return (
        f"  loop {row['torch_seconds'] * 1e3:.2f} ms, JAX {row['fedkin_seconds'] * 1e3:.2f} ms "
        f"({row['ratio']:.2f}), module {row['module_seconds'] * 1e3:.2f} ms ({row['module_ratio']:.2f})"
    )


def _show_larger(answer: dict[str, Any]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("network", "computation"):
        table.add_column(heading)
    headings = ("nodes", "loop", "JAX", "ratio", "module", "ratio", "matmul", "difference")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in answer["contests"]:
        table.add_row(
            row["network"],
            row["name"],
            str(row["nodes"]),
            f"{row['torch_seconds'] * 1e3:.2f} ms",
            f"{row['fedkin_seconds'] * 1e3:.2f} ms",
            f"{row['ratio']:.2f}",
            f"{row['module_seconds'] * 1e3:.2f} ms",
            f"{row['module_ratio']:.2f}",
            f"{row['matmul_share']:.0%}",
            f"{row['difference']:.0e}",
        )
    results.print(table)
    results.print(
        f"\nTimes of one node's mini-batch of 50, on {answer['cores']} cores: in the PyTorch loop, in "
        "fedkin's JAX engine, and in its engine for PyTorch modules with the loop's network. matmul: the "
        f"JAX engine's share of {answer['matmul_gigaflops']:.0f} Gflop/s."
    )
    for row in answer["contests"]:
        if "memory" in row:
            found = row["memory"]
            calls = ", ".join(f"{n} {s:.1f} s" for n, s in found["first_call_seconds"].items())
            again = ", ".join(f"{n} {s:.1f} s" for n, s in found["second_process_seconds"].items())
            results.print(
                f"{row['network']}, {row['nodes']} nodes: {found['fedkin_megabytes']:,.0f} MB at most, as a "
                f"module {found['module_megabytes']:,.0f} MB, loop {found['torch_megabytes']:,.0f} MB. First "
                f"calls: {calls}; in a second process: {again}."
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
