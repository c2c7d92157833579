"""Training on the owner's own rows alone, also where they stay at the owner's node.

There, all rounds of one solve are one question: nothing but the model would travel between them.
"""

from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from fedkin.errors import DivergedError
from fedkin.federation.base import Cost, Federation, WeightedSum
from fedkin.federation.center import Center
from fedkin.federation.distant_center import DistantCenter
from fedkin.federation.questions import HeldOut, Question, Replies
from fedkin.federation.task import RATE, SHARE, STEPS
from fedkin.methods.local_svrg.center import LocalSvrg, SvrgSolution, refuse_divergence, solve_inner
from fedkin.types import Key, Message, Vector

LARGEST_CONVEXITY = 1e6
"""The largest constant of strong convexity in a question."""


def solve_alone(
    center: Center, start: Vector, key: Key, settings: LocalSvrg, *, begin: bool
) -> SvrgSolution:
    """Minimize the loss of the owner's own rows. For the arguments see `solve_inner`."""
    if not isinstance(center, DistantCenter):
        return solve_inner(center.alone, jnp.ones(1), start, key, settings, begin=begin)
    request = WeightedSum(
        TRAIN_ALONE,
        {
            "point": start,
            "learning_rate": settings.learning_rate,
            "refresh_probability": settings.refresh_probability,
            "strong_convexity": settings.strong_convexity,
            "tolerance": settings.tolerance or 0.0,
        },
        weights=jnp.ones(1),
        steps=settings.period,
        rounds=settings.rounds,
        result=settings.result,
        start="new" if begin else "continued",
    )
    found = center.alone.exchange(train=request, key=key).train
    rounds, loss = int(found["rounds"]), float(found["loss"])
    refuse_divergence(
        "the model", rounds, found["point"], loss, loss, learning_rate=settings.learning_rate
    )
    cost = Cost(synchronizations=rounds, node_points=(int(found["points"]),))
    return SvrgSolution(found["point"], cost, rounds, loss, bool(found["settled"] > 0.5))


def train_alone(
    held_out: HeldOut,
    message: Message,
    key: Key,
    *,
    steps: int,
    rounds: int,
    result: str,
    start: str,
) -> Replies:
    """Train on the node's own training rows for some rounds, and reply with the model."""
    tolerance = float(message["tolerance"])
    settings = LocalSvrg(
        learning_rate=float(message["learning_rate"]),
        period=steps,
        rounds=rounds,
        refresh_probability=float(message["refresh_probability"]),
        strong_convexity=float(message["strong_convexity"]),
        result="average" if result == "average" else "last",
        tolerance=tolerance if tolerance > 0 and result != "average" else None,
    )
    alone, point = held_out.center.alone, message["point"]
    asked = (
        start,
        settings,
        np.asarray(jax.random.key_data(key)).tobytes(),
        np.asarray(point).tobytes(),
    )
    before = _LAST_ANSWERS.get(alone)
    # Asked again, because the answer was lost, it must not train on from where it has ended.
    if before is not None and before[0] == asked:
        return before[1]
    # A node that was started again has no reference point to continue with.
    begin = start == "new" or not alone.export_state()
    replies = _train(alone, point, key, settings, begin=begin)
    _LAST_ANSWERS[alone] = asked, replies
    return replies


_LAST_ANSWERS: "WeakKeyDictionary[Federation, tuple[tuple, Replies]]" = WeakKeyDictionary()
"""What was last asked of a federation of one node, and the answer."""


def _train(
    alone: Federation, point: Vector, key: Key, settings: LocalSvrg, *, begin: bool
) -> Replies:
    try:
        found = solve_inner(alone, jnp.ones(1), point, key, settings, begin=begin)
    except DivergedError:
        unknown = float("nan")
        return {"point": point * unknown, "loss": unknown, "rounds": 1, "points": 0, "settled": 0}
    return {
        "point": found.point,
        "loss": found.loss,
        "rounds": found.rounds,
        "points": found.cost.points,
        "settled": float(found.settled),
    }


TRAIN_ALONE = Question(
    "train_alone",
    train_alone,
    vectors=("point",),
    numbers={
        "learning_rate": RATE,
        "refresh_probability": SHARE,
        "strong_convexity": (0.0, LARGEST_CONVEXITY),
        "tolerance": SHARE,
    },
    options={
        "steps": STEPS,
        "rounds": STEPS,
        "result": ("average", "last"),
        "start": ("new", "continued"),
    },
    vector_replies=("point",),
    number_replies=("loss", "rounds", "points", "settled"),
    remote=False,
    reveals="The model that the node's own training leads to, from the model that was sent.",
)
