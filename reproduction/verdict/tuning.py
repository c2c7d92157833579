"""How the constants of the verdict were chosen, on federations that the evidence does not use.

`python -m reproduction.verdict.tuning` trains all candidates once, on 240 common and 140 misleading
federations, and prints what every choice of constants makes of them. `--owner-rows 20 --rounds 60` looks at
owners with 20 rows only, who may lose most by a wrong choice.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np

from fedkin.advice import verdict
from fedkin.advice.candidates import CANDIDATES
from fedkin.training import alone
from reproduction.verdict.exact import Trained, train_all
from reproduction.verdict.federations import compare, is_wrong
from reproduction.verdict.store import regret
from reproduction.verdict.synthetic import MixName, Synthetic, cases, draw

FIRST_SEEDS: dict[MixName, int] = {"common": 2_000_000, "misleading": 3_000_000}
ROUNDS: dict[MixName, int] = {"common": 10, "misleading": 5}
PRIORS = (
    ((0.1, 0.2, 0.2, 0.5), 3.0),
    ((0.25, 0.2, 0.2, 0.35), 3.0),
    ((0.25, 0.2, 0.2, 0.35), 9.0),
    ((0.2, 0.15, 0.15, 0.5), 3.0),
    ((0.2, 0.15, 0.15, 0.5), 6.0),
    ((0.2, 0.15, 0.15, 0.5), 9.0),
    ((0.4, 0.15, 0.15, 0.3), 1.0),
    ((0.4, 0.15, 0.15, 0.3), 3.0),
    ((0.55, 0.1, 0.1, 0.25), 3.0),
)
AGAINST = (1.645, 2.0, 2.5, np.inf)
SPREADS = (1.25, 1.5, 1.75, 2.0)
CHANCES = (0.1, 0.3, 0.5, 1.0)

Drawn = list[tuple[Synthetic, Trained]]


def describe(drawn: Drawn, prior: Sequence[float] | None = None, **constants: Any) -> str:
    """Return regret, verdicts and coverage with some constants, in one line."""
    shares = {} if prior is None else dict(zip(CANDIDATES, prior, strict=True))
    with patch.multiple(verdict, **constants), patch.dict(verdict.MIXTURE_PRIOR, shares):
        results = [compare(made, trained) for made, trained in drawn]
    points = np.array([100 * regret(each, "final") for each in results])
    text = f"regret {points.mean():.2f}, worst {points.max():.1f}, above 10: {np.sum(points > 10)}"
    for name in ("join", "alone"):
        own = [each for each in results if each["verdict"] == name]
        text += f"; {name} {len(own)}, wrong {sum(map(is_wrong, own))}"
    loss = np.mean([each["test_loss"]["final"] for each in results])
    covered = [each["gain"][1] <= each["true_gain"] <= each["gain"][2] for each in results]
    return f"{text}; log loss {loss:.4f}; coverage {np.mean(covered):.3f}"


def main(arguments: list[str] | None = None) -> None:
    """Print what every choice does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, help="federations of every kind; default: as chosen by"
    )
    parser.add_argument("--owner-rows", type=int, help="only owners with this many rows")
    options = parser.parse_args(arguments)
    for mix, first in FIRST_SEEDS.items():
        drawn: Drawn = []
        for number in range(options.rounds or ROUNDS[mix]):
            for place, case in enumerate(cases(mix)):
                if options.owner_rows not in (None, case.owner_rows):
                    continue
                made = draw(first + 100 * number + place, case)
                drawn.append((made, train_all(made.nodes, made.owner, "classification")))
        sys.stdout.write(f"{len(drawn)} {mix} federations\n")
        for prior, strength in PRIORS:
            found = describe(drawn, prior, MIXTURE_STRENGTH=strength)
            sys.stdout.write(f"  prior {prior}, worth {strength:g} rows: {found}\n")
        for number in AGAINST:
            sys.stdout.write(f"  against {number:g}: {describe(drawn, AGAINST=number)}\n")
        for number in SPREADS:
            sys.stdout.write(f"  spread {number:g}: {describe(drawn, SPREAD=number)}\n")
        for number in CHANCES:
            with patch.object(alone, "CHANCE", number):
                found = describe(drawn, SPREAD=verdict.SPREAD)
            sys.stdout.write(f"  chance {number:g}: {found}\n")


if __name__ == "__main__":
    main()
