"""What `fedkin.contributions` costs, and how exact it is (docs/contributions.md).

python -m reproduction.contributions cost       # seconds and synchronizations beside runs without each node
python -m reproduction.contributions orders     # sampled values against exact ones
python -m reproduction.contributions networks   # continued training against training from the start
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedkin
from fedkin.data.scenarios import paper_scenario, sample_federation
from fedkin.data.sources import load_images
from fedkin.training.folds import draw_folds
from fedkin.valuation import contributions as public
from fedkin.valuation.game import Game, sampled_shapley
from reproduction.verdict.tables import hospitals

Rows = tuple[np.ndarray, np.ndarray]


class Federation(NamedTuple):
    """Nodes, and the owner's rows."""

    nodes: dict[str, Rows]
    validation: Rows

    def without(self, name: str) -> "Federation":
        """Return the federation without a node."""
        return self._replace(nodes={n: rows for n, rows in self.nodes.items() if n != name})


def hospital(owner: str, directory: Path) -> Federation:
    """Four hospitals, each standardized by itself; three tenths of the owner's rows are for validation."""
    rows = {
        name: ((x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9), y)
        for name, (x, y) in hospitals(directory).rows.items()
    }
    x, y = rows[owner]
    held = draw_folds(y, 10, np.random.default_rng(0), stratify=True) < 3
    return Federation(rows | {owner: (x[~held], y[~held])}, (x[held], y[held]))


def digits(seed: int = 0) -> Federation:
    """The federation of `fedkin demo`: 15 nodes, ten of which call four digits by other names."""
    found = sample_federation(load_images("digits"), paper_scenario("digits", 2), "minority", seed)
    nodes = zip(found.names, found.nodes, strict=True)
    x, y = found.validation
    return Federation({name: (inputs, labels) for name, (inputs, labels) in nodes}, (x, y))


def six_digits(seed: int) -> Federation:
    """Three nodes like the owner, and three of the others."""
    whole = digits(seed)
    chosen = [*list(whole.nodes)[:3], *list(whole.nodes)[5:8]]
    return Federation({name: whole.nodes[name] for name in chosen}, whole.validation)


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def distance(first: Any, second: Any) -> float:
    """Return the root of the mean squared difference."""
    return float(np.sqrt(np.mean((np.asarray(first) - np.asarray(second)) ** 2)))


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a second call returns, when all code is compiled, and its processor time."""
    run()
    since = time.process_time()
    found = run()
    return found, time.process_time() - since


MOST_RUNS = 4
"""How many of the runs without a node are measured; the others are taken to be like them on average."""


def cost(directory: Path) -> None:
    """Print what contributions cost beside a run without each node."""
    cases = {f"hospitals, {name}": hospital(name, directory) for name in ("cleveland", "va")}
    for title, given in (cases | {"digits": digits()}).items():
        classes = len(np.unique(np.concatenate([y for _, y in given.nodes.values()])))
        result, one = timed(lambda given=given, c=classes: fedkin.fit(*given, classes=c))
        measured = list(given.nodes)[:: -(-len(given.nodes) // MOST_RUNS)]
        without = given.without(measured[0])
        runs = [timed(lambda given=without, c=classes: fedkin.fit(*given, classes=c))]
        for name in measured[1:]:  # the code is compiled by now
            since = time.process_time()
            run = fedkin.fit(*given.without(name), classes=classes)
            runs.append((run, time.process_time() - since))
        times = len(given.nodes) / len(runs)
        synchronizations = times * sum(run.cost.synchronizations for run, _ in runs)
        seconds = times * sum(each for _, each in runs)
        say(
            f"{title}: one run {one:.1f} s, {result.cost.synchronizations} synchronizations; "
            f"{len(given.nodes)} runs {seconds:.1f} s, {synchronizations:.0f} synchronizations"
        )
        found, spent = timed(lambda r=result, g=given: fedkin.contributions(r, *g))
        say(
            f"  contributions: {spent:.1f} s ({spent / seconds:.2f} of the runs), "
            f"{found.cost.synchronizations} synchronizations "
            f"({found.cost.synchronizations / synchronizations:.2f}), {found.groups} groups, "
            f"{found.ended_early} orders ended early, largest sampling error "
            f"{found.table['sampling_error'].max():.3g} of {found.table['shapley'].abs().max():.3g}"
        )


def all_groups(given: Federation, **options: Any) -> tuple[fedkin.Contributions, Game]:
    """Return exact contributions, and the worth of all groups."""
    games: list[Game] = []

    class Kept(Game):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            games.append(self)

    before, public.Game = public.Game, Kept
    try:
        result = fedkin.fit(*given, classes=len(np.unique(given.validation[1])))
        return fedkin.contributions(result, *given, exact=True, **options), games[0]
    finally:
        public.Game = before


def plain_permutations(game: Game, orders: int, random: np.random.Generator) -> np.ndarray:
    """Return the mean gain of each player over independent orders: what others' estimators start from."""
    gains = np.zeros((orders, game.players))
    for own in gains:
        order = random.permutation(game.players)
        worths = [game.worth(order[:size]).mean() for size in range(game.players + 1)]
        own[order] = np.diff(worths)
    return gains.mean(axis=0)


def orders(directory: Path) -> None:
    """Print the error of sampled values, and how often two standard errors cover the exact ones."""
    cases = {
        "six nodes of digits": six_digits(seed=1),
        "four hospitals, va": hospital("va", directory),
    }
    for title, given in cases.items():
        for score in ("loss", "accuracy"):
            exact, game = all_groups(given, score=score)
            truth = exact.table["shapley"].to_numpy()
            say(f"{title}, {score}: {truth.round(3).tolist()}")
            for count in (10, 20, 40):
                draws = [sampled_shapley(game, count, np.random.default_rng(s)) for s in range(200)]
                away = np.stack([draw.values.mean(axis=1) - truth for draw in draws])
                errors = np.stack([draw.error for draw in draws])
                plain = np.stack(
                    [plain_permutations(game, count, np.random.default_rng(s)) for s in range(200)]
                )
                say(
                    f"  {count} orders: error {distance(away, 0):.4f} (independent orders "
                    f"{distance(plain, truth):.4f}), standard error "
                    f"{distance(errors, 0):.4f}, two cover {np.mean(np.abs(away) <= 2 * errors):.1%}"
                )


FROM_START = 100
"""The rounds that a network takes from a new model, so that its values are its own."""


def networks(directory: Path, seed: int = 2) -> None:
    """Print values of a network by few rounds beside those by many; the defaults were chosen with seed 1."""
    given = six_digits(seed)
    result = fedkin.fit(*given, model="mlp", classes=10)
    weights = result.weights or {}
    say(f"weights { {name: round(weight, 3) for name, weight in weights.items()} }")
    truth = fedkin.contributions(result, *given, warm_start=False, rounds=FROM_START)
    say(
        f"from the start, {FROM_START} rounds: {truth.table['shapley'].round(3).tolist()}, everyone "
        f"{truth.everyone:.3f}, nobody {truth.nobody:.3f}"
    )
    for rounds in (10, 40):
        for warm in (True, False):
            found = fedkin.contributions(result, *given, warm_start=warm, rounds=rounds)
            values = found.table["shapley"]
            say(
                f"  {'from the result' if warm else 'from the start'}, {rounds} rounds: "
                f"{values.round(3).tolist()}, correlation "
                f"{np.corrcoef(values, truth.table['shapley'])[0, 1]:.3f}, error "
                f"{distance(values, truth.table['shapley']):.3f}, of leave-one-out "
                f"{distance(found.table['leave_one_out'], truth.table['leave_one_out']):.3f}"
            )


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("cost", "orders", "networks"))
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDKIN_DATA"))
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("name the directory of the data sets: --data or FEDKIN_DATA")
    measurements = {"cost": cost, "orders": orders, "networks": networks}
    measurements[arguments.what](Path(arguments.data))


if __name__ == "__main__":
    main()
