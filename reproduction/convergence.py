"""Whether "converged" is true: the single loop against SciPy on random federations.

`python -m reproduction.convergence` fits each federation with fedkin's defaults, but with one mini-batch per
node, so that its loss is the mean over its rows. It compares the validation loss at the weights found, with
the inner problem solved exactly, with its minimum over the capped simplex.
"""

import argparse
import sys
from statistics import median

import numpy as np

import fedkin
from reproduction.random_federations import RandomFederation, draw_federation

FIRST_SEED = 1_000
"""From this seed on nothing was chosen by the federations, except by 1012 (ridge) and 1018 (logistic)."""

ONE_BATCH = 1_000
"""With mini-batches of this size a node has one, and its loss is the mean over its rows."""


def excess(federation: RandomFederation, result: fedkin.Result, lowest: float) -> float:
    """Return how far the validation loss at a result's weights is above the lowest, as a share."""
    weights = np.array(list((result.weights or {}).values()))
    return federation.outer(weights / weights.sum())[0] / lowest - 1


def main(arguments: list[str] | None = None) -> None:
    """Print a line per federation, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--federations", type=int, default=64)
    parser.add_argument("--model", choices=("logistic", "ridge"), default="logistic")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args(arguments)
    rows = []
    write = sys.stdout.write
    write("seed  nodes  features  synchronizations  above minimum  equal weights  stopped\n")
    for seed in range(options.first_seed, options.first_seed + options.federations):
        federation = draw_federation(seed, options.model)
        result = fedkin.fit(
            list(federation.nodes), federation.own, model=options.model, batch_size=ONE_BATCH
        )
        lowest = federation.minimum()
        above = excess(federation, result, lowest)
        count = len(federation.nodes)
        equal = federation.outer(np.full(count, 1 / count))[0] / lowest - 1
        converged = result.stopped.startswith("converged")
        rows.append((result.cost.synchronizations, above, converged))
        write(
            f"{seed:4d}  {count:5d}  {federation.own[0].shape[1]:8d}  "
            f"{result.cost.synchronizations:16d}  {above:13.4%}  {equal:13.1%}  "
            f"{result.stopped.split(':')[0]}\n"
        )
        sys.stdout.flush()
    counts = [count for count, _, _ in rows]
    worst = max((above for _, above, converged in rows if converged), default=float("nan"))
    write(
        f"{len(rows)} federations: {median(counts)} synchronizations in the median, {max(counts)} at most; "
        f"converged in {sum(converged for *_, converged in rows)}, there at most {worst:.4%} above the "
        "minimum\n"
    )


if __name__ == "__main__":
    main()
