"""Draw the README's picture: the answer that its first example gets.

python scripts/draw_answer.py docs/images/answer.png
"""

import re
import sys
from pathlib import Path

from matplotlib import pyplot

ROOT = Path(__file__).parents[1]


def main(out: Path) -> None:
    """Run the example, and draw its weights and what joining gains."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```", readme, re.M | re.S)
    assert found is not None
    names: dict = {}
    exec(found[1], names)  # noqa: S102
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    names["advice"].plot_weights(left)
    names["advice"].plot_gains(right)
    left.set_title("Whom to learn with")
    right.set_title("What that gains")
    for axes in (left, right):
        axes.locator_params(axis="x", nbins=5)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
