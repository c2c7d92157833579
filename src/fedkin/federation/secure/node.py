"""What a node makes of its replies before they leave it: words, masked for the members of each sum."""

from collections.abc import Callable, Mapping

import numpy as np

from fedkin.federation.secure.masks import add_masks
from fedkin.federation.secure.orders import WORDS, SumOrder, measure, write_words
from fedkin.federation.task import Task


def mask_replies(
    task: Task,
    order: SumOrder,
    replies: Mapping[str, np.ndarray],
    sent: Mapping[str, np.ndarray],
    own: int,
    secrets: Mapping[int, bytes],
    label: Callable[[tuple[int, ...], list[int]], bytes],
) -> dict[str, np.ndarray]:
    """Return what a node sends in place of its replies: masked words, and norms.

    Sums with the same members have one stream of each pair together.

    Args:
        task: The task.
        order: What the node was told of the sums.
        replies: Its replies, with a row per model.
        sent: The vectors of the message, each for all models or with a row per model.
        own: The number of the node.
        secrets: The secrets that it shares with the other members, by their numbers.
        label: Returns a digest of everything that describes some sums, given their members and rows.
    """
    measured = measure(task, replies, sent)
    words = write_words(order, task, replies, measured)
    together: dict[tuple[int, ...], list[int]] = {}
    for row, told in enumerate(order.rows):
        together.setdefault(told.members, []).append(row)
    for members, rows in together.items():
        words[rows] = add_masks(words[rows], own, members, secrets, label(members, rows))
    return {WORDS: words, **measured}
