"""`python -m reproduction.theory`: the paper's theory, measured. Each command makes a figure and a table."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedkin.cli.output import JsonOption, notes, print_json, results
from fedkin.errors import InputError
from reproduction.theory import defaults

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measure what the paper's theory claims: each command makes a figure and a table (docs/theory.md).",
)

OutOption = Annotated[
    Path, typer.Option(metavar="DIR", help="Directory for the figure (SVG, PNG) and the CSV files.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Same seed, same numbers.")]
DEFAULT_OUT = Path("fedkin-theory")


@app.command()
def rates(
    out: OutOption = DEFAULT_OUT,
    runs: Annotated[
        int, typer.Option(min=2, help="Runs of Local-SVRG for each curve of the first panel.")
    ] = defaults.LOCAL_SVRG_RUNS,
    effort: Annotated[
        float,
        typer.Option(
            min=0.1, max=4.0, help="Multiplies the outer iterations; time grows much faster."
        ),
    ] = 1.0,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Local-SVRG's error next to its bound; rounds until ε of Algorithms 2 and 3 with fitted slopes."""
    _prepare(out)
    from reproduction.theory import figures, local_svrg_error
    from reproduction.theory import rates as claims
    from reproduction.theory.slopes import fit_slopes

    study = claims.RoundsStudy(seed=seed).with_effort(effort)
    with _progress() as progress:
        svrg = local_svrg_error.measure_local_svrg(
            local_svrg_error.SvrgStudy(runs=runs, seed=seed), progress
        )
        rounds = claims.measure_rounds(study, progress)
    slopes = fit_slopes(rounds)
    worst = local_svrg_error.largest_share_of_bound(svrg)
    written = _write(
        out,
        "rates",
        figures.draw_rates(svrg, rounds, slopes),
        {"rates-local-svrg": svrg, "rates-rounds": rounds},
    )
    answer = {
        "local_svrg": {"runs": runs, "largest_share_of_bound": worst},
        "slopes": [asdict(slope) | {"no_worse": slope.no_worse} for slope in slopes],
    }
    if json:
        print_json(answer | _files(written), schema="theory.rates/1")
        return
    results.print(
        f"Local-SVRG: mean error plus two standard errors is at most {worst:.2g} of its bound "
        f"({runs} runs, {len(svrg)} points)."
    )
    results.print(
        "Rounds until ε: are the fitted slopes no worse than the theory's power, with its logarithms?"
    )
    table = Table(box=None, header_style="bold")
    for heading in ("", "τ"):
        table.add_column(heading)
    for heading in ("slope", "± 2 s.e.", "power", "with logarithms", "no worse"):
        table.add_column(heading, justify="right")
    for slope in slopes:
        table.add_row(
            "Algorithm 2, convex F" if slope.outer_problem == "convex" else "Algorithm 3, any F",
            str(slope.period),
            f"{slope.slope:.2f}",
            f"{2 * slope.standard_error:.2f}",
            f"{slope.predicted:g}",
            f"{slope.promised_slope:.2f}",
            "yes" if slope.no_worse else "no",
        )
    results.print(table)
    _say(written)


@app.command()
def regimes(
    out: OutOption = DEFAULT_OUT,
    runs: Annotated[
        int, typer.Option(min=5, help="Federations drawn for each cell.")
    ] = defaults.REGIME_RUNS,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Who wins: Bi-level, local training or equal weights, over n_valid × G and n_train × G."""
    _prepare(out)
    from reproduction.theory import figures
    from reproduction.theory import regimes as claims
    from reproduction.theory.tables import numbers

    study = claims.RegimeStudy(runs=runs, seed=seed)
    with _progress(len(list(study.cells()))) as progress:
        cells = claims.measure_regimes(study, progress)
    written = _write(out, "regimes", figures.draw_regimes(study, cells), {"regimes": cells})
    counts = claims.cells_won(cells)
    near = claims.at_smallest_distance(cells)
    answer = {
        "cells_won": counts,
        "at_smallest_distance": asdict(near),
        "equal_beats_bilevel": claims.cells_lost_to_equal(cells, "bilevel"),
        "equal_beats_similar_only": claims.cells_lost_to_equal(cells, claims.IDEAL),
        "cells": len(cells),
        "cells_where_corollaries_apply": int(numbers(cells, "corollaries_apply").sum()),
        "largest_parameter": float(numbers(cells, "largest_parameter").max()),
        "borders": {
            f"{axis}, {rival}": [
                asdict(border) for border in claims.measured_border(cells, axis, rival)
            ]
            for axis in claims.AXES
            for rival in claims.RIVALS
        },
    }
    if json:
        print_json(answer | _files(written), schema="theory.regimes/1")
        return
    table = Table(box=None, header_style="bold")
    table.add_column("map")
    for way in claims.METHODS:
        table.add_column(f"{figures.WAYS[way]} wins", justify="right")
    for axis, won in counts.items():
        table.add_row(f"n_{axis} × G", *(str(won[way]) for way in claims.METHODS))
    results.print(table)
    results.print(
        f"At the smallest distance, G = {near.distance:.3g}, Bi-level has a smaller excess risk than local "
        f"training in {near.beats_local} of {near.cells} cells."
    )
    results.print(
        f"Equal weights have a smaller one than Bi-level in {answer['equal_beats_bilevel']} of {len(cells)} "
        "cells, and than equal weights on the similar nodes alone, the best that Assumption 2' offers, in "
        f"{answer['equal_beats_similar_only']}."
    )
    results.print(
        f"Corollary 1 applies, with all constants 1, in {answer['cells_where_corollaries_apply']} cells."
    )
    _say(written)


@app.command()
def cap(
    out: OutOption = DEFAULT_OUT,
    runs: Annotated[
        int, typer.Option(min=5, help="Federations drawn for each J.")
    ] = defaults.CAP_RUNS,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """How the cap b on a weight and the number J of similar nodes change Bi-level's excess risk."""
    _prepare(out)
    from reproduction.theory import cap as claims
    from reproduction.theory import figures

    study = claims.CapStudy(runs=runs, seed=seed)
    with _progress() as progress:
        cells = claims.measure_cap(study, progress)
    bounds = claims.cap_bounds(study, cells)
    written = _write(
        out,
        "cap",
        figures.draw_cap(cells, bounds, study.nodes),
        {"cap": cells, "cap-bounds": bounds},
    )
    best = claims.best_caps(cells)
    if json:
        print_json(
            {"best": [asdict(each) for each in best]} | _files(written), schema="theory.cap/1"
        )
        return
    table = Table(box=None, header_style="bold")
    for heading in ("J", "best b", "1/J", "excess risk there", "at b = 1/K", "at b = 1"):
        table.add_column(heading, justify="right")
    for each in best:
        table.add_row(
            f"{each.similar}",
            f"{each.cap:.3f}",
            f"{1 / each.similar:.3f}",
            f"{each.excess_risk:.4f} ± {2 * each.standard_error:.4f}",
            f"{each.at_smallest_cap:.4f}",
            f"{each.without_cap:.4f}",
        )
    results.print(table)
    _say(written)


@app.command()
def examples(
    out: OutOption = DEFAULT_OUT,
    runs: Annotated[
        int, typer.Option(min=10, help="Federations drawn for each mean.")
    ] = defaults.EXAMPLE_RUNS,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """The paper's worked examples: mean estimation, and the error bound with r = 2."""
    _prepare(out)
    from reproduction.theory import examples as claims
    from reproduction.theory import figures

    study = claims.ExampleStudy(runs=runs, seed=seed)
    with _progress() as progress:
        means = claims.measure_mean_estimation(study, progress)
        scatter, constants = claims.measure_error_bound(study, progress)
    constant = claims.constant_at(constants, study.federation.offset)
    share = claims.largest_share_of_error_bound(scatter, constant)
    written = _write(
        out,
        "examples",
        figures.draw_examples(means, scatter, constants, constant),
        {
            "examples-means": means,
            "examples-weights": scatter,
            "examples-constants": constants,
        },
    )
    answer = {
        "error_bound_constant": constant,
        "largest_share_of_error_bound": share,
        "means": means.to_dict("records"),
        "constants": constants.to_dict("records"),
    }
    if json:
        print_json(answer | _files(written), schema="theory.examples/1")
        return
    table = Table(box=None, header_style="bold")
    for heading in ("a", "n_valid", "error of ŵ₁", "predicted"):
        table.add_column(heading, justify="right")
    for row in answer["means"]:
        if row["valid"] not in (study.valid[0], study.valid[-1]):
            continue
        table.add_row(
            f"{row['offset']:g}",
            f"{row['valid']}",
            f"{row['weight_error']:.4f} ± {2 * row['weight_error_standard_error']:.4f}",
            f"{row['predicted_weight_error']:.4f}",
        )
    results.print(table)
    results.print(
        f"Linear regression: Dist(w, W*) is at most {share:.3f} of C_r √(F(w) − min F), "
        f"C_r = {constant:.3f}, over {len(scatter)} weights."
    )
    _say(written)


def _prepare(out: Path) -> None:
    """Make the directory before any work, so that a wrong name costs no time."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {out} is not a directory that can be written to: {error.strerror}"
        ) from error


@contextmanager
def _progress(total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show what is being computed, on stderr; with a share where the number of parts is known."""
    done = 0
    with notes.status("starting …") as status:

        def show(what: str) -> None:
            nonlocal done
            done += 1
            share = "" if total is None else f"{(done - 1) / total:4.0%} "
            status.update(f"{share}{what} …")

        yield show


def _write(out: Path, name: str, figure: "Figure", tables: "dict[str, pd.DataFrame]") -> list[Path]:
    from reproduction.theory.figures import save_figure

    written = save_figure(figure, out, name)
    for title, table in tables.items():
        path = out / f"{title}.csv"
        try:
            table.to_csv(path, index=False)
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror}") from error
        written.append(path)
    return written


def _files(written: Sequence[Path]) -> dict[str, Any]:
    return {"files": [str(path) for path in written]}


def _say(written: Sequence[Path]) -> None:
    results.print(
        "written: " + ", ".join(str(path) for path in written), soft_wrap=True, markup=False
    )
