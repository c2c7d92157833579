"""What a center can see of its nodes' rows: an attack on replies, plain and masked.

Five nodes have eight handwritten digits each, and train one model together: two local steps, then the mean.
The center wants the digits of the first node, and their labels.

    python examples/what_a_center_sees/what_a_center_sees.py
"""

import argparse
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment, minimize
from sklearn.datasets import load_digits

from fedkin.data.batches import NodeData
from fedkin.federation.base import WeightedSum
from fedkin.federation.privacy import Budget, Privacy
from fedkin.federation.private_work import PrivateWork
from fedkin.federation.secure.fixed_point import decode
from fedkin.federation.secure.orders import WORDS, reply_slices
from fedkin.federation.secure.simulation import SecureSums, SeenSum
from fedkin.federation.simulation import SimulatedFederation
from fedkin.federation.wrapper import Shown
from fedkin.methods.descent.node import DESCENT_ROUND
from fedkin.models.linear import Logistic
from fedkin.models.objective import Objective

NODES, ROWS, PIXELS, CLASSES = 5, 8, 64, 10
STEPS, RATE, L2 = 2, 0.1, 1e-3
VICTIM = 0
EPSILON, DELTA = 10.0, 1e-3
ALIKE = 0.05
"""A digit is recovered if its pixels, between 0 and 1, are wrong by less than this: the root mean square."""


@dataclass
class Scene:
    """The nodes, and the digits that a stranger would guess by."""

    nodes: list[tuple[np.ndarray, np.ndarray]]
    public: tuple[np.ndarray, np.ndarray]
    objective: Objective

    @classmethod
    def draw(cls, seed: int) -> "Scene":
        """Give every node eight digits; the center has others of its own."""
        digits = load_digits()
        order = np.random.default_rng(seed).permutation(len(digits.target))
        inputs = (digits.data / 16).astype(np.float32)[order]
        labels = digits.target[order].astype(np.int32)
        nodes = [
            (inputs[ROWS * node : ROWS * (node + 1)], labels[ROWS * node : ROWS * (node + 1)])
            for node in range(NODES)
        ]
        public = inputs[ROWS * NODES :], labels[ROWS * NODES :]
        objective = Objective.create(Logistic(classes=CLASSES, l2=L2), jnp.asarray(inputs[:2]))
        return cls(nodes, public, objective)

    def federation(self, granted: Privacy | None = None) -> SimulatedFederation:
        """Return the nodes as an engine; with differential privacy if it is granted."""

        def private(objective: Objective, data: NodeData) -> PrivateWork:
            return PrivateWork(objective, data, [Budget(granted) for _ in self.nodes])

        work = None if granted is None else private
        return SimulatedFederation(
            self.objective, self.nodes, batch_size=ROWS, seed=0, threads=1, work=work
        )


@dataclass
class Loot:
    """What an attack has found."""

    labels: int
    """How many of the node's labels are among those found."""
    rows: int
    """How many digits are recovered."""
    error: float
    """The root mean square error of the digits found, each compared with the one that it is most like."""


def judge(scene: Scene, rows: np.ndarray, labels: np.ndarray) -> Loot:
    """Compare what was found with the truth: the only place where the attacks' results meet it."""
    true, true_labels = scene.nodes[VICTIM]
    distance = np.sqrt(np.mean((rows[:, None] - true[None]) ** 2, axis=2))
    found, place = linear_sum_assignment(distance)
    counts = [np.minimum(np.sum(labels == c), np.sum(true_labels == c)) for c in range(CLASSES)]
    errors = distance[found, place]
    return Loot(int(sum(counts)), int((errors < ALIKE).sum()), float(errors.mean()))


def guess(scene: Scene, seed: int) -> Loot:
    """Guess without seeing anything: digits of the center's own."""
    chosen = np.random.default_rng([seed, 1]).choice(len(scene.public[1]), ROWS, replace=False)
    return judge(scene, scene.public[0][chosen], scene.public[1][chosen])


def ask(start: np.ndarray, weights: np.ndarray) -> WeightedSum:
    """Return an honest request of FedAvg."""
    message = {"point": jnp.asarray(start, jnp.float32), "learning_rate": RATE, "proximal": 0.0}
    return WeightedSum(DESCENT_ROUND, message, weights=jnp.asarray(weights), steps=STEPS)


@partial(jax.jit, static_argnums=0)
def train(objective: Objective, start: jax.Array, rows: jax.Array, labels: jax.Array) -> jax.Array:
    """Do what a node does in a round; labels are chances."""

    def loss(theta: jax.Array) -> jax.Array:
        params = objective.unflatten(theta)
        outputs = objective.model.apply(params, rows)
        fit = -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(outputs), axis=1))
        return fit + objective.model.penalty(params)

    theta = start
    for _ in range(STEPS):
        theta = theta - RATE * jax.grad(loss)(theta)
    return theta


def read_labels(scene: Scene, start: np.ndarray, reply: np.ndarray, count: int) -> np.ndarray:
    """Read the labels off the constant terms: each moves by its class's share, less what was expected.

    What was expected depends on rows that the attacker does not know; its own digits stand in.
    """
    intercept = scene.objective.unflatten(jnp.asarray(reply - start))["bias"]
    moved = np.nan_to_num(np.asarray(intercept, np.float64))
    rows, _ = scene.public
    theta, expected = jnp.asarray(start, jnp.float32), np.zeros(CLASSES)
    for _ in range(STEPS):
        outputs = scene.objective.model.apply(scene.objective.unflatten(theta), jnp.asarray(rows))
        expected += np.asarray(jax.nn.softmax(outputs).mean(axis=0), np.float64) / STEPS
    shares = moved / (RATE * STEPS) + expected
    labels: list[int] = []
    left = shares * count
    for _ in range(count):  # the largest share first
        label = int(np.argmax(left))
        labels.append(label)
        left[label] -= 1
    return np.array(sorted(labels))


def find_digits(
    scene: Scene, start: np.ndarray, reply: np.ndarray, labels: np.ndarray, seed: int
) -> np.ndarray:
    """Return digits with these labels that training would have made the reply of, as nearly as possible."""
    known = jax.nn.one_hot(labels, CLASSES)
    begin_at, given = jnp.asarray(start, jnp.float32), jnp.asarray(reply, jnp.float32)
    scale = jnp.mean((given - begin_at) ** 2)

    @jax.jit
    @jax.value_and_grad
    def misfit(flat: jax.Array) -> jax.Array:
        made = train(scene.objective, begin_at, flat.reshape(-1, PIXELS), known)
        return jnp.mean((made - given) ** 2) / scale

    def function(flat: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = misfit(jnp.asarray(flat, jnp.float32))
        return float(value), np.asarray(slope, np.float64)

    random = np.random.default_rng([seed, 2])
    rows, own = scene.public
    first = np.array([rows[random.choice(np.flatnonzero(own == label))] for label in labels])
    found = minimize(
        function,
        first.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, 1.0)] * first.size,
        options={"maxiter": 500, "ftol": 1e-15, "gtol": 1e-12},
    )
    return found.x.reshape(-1, PIXELS)


def attack(scene: Scene, start: np.ndarray, reply: np.ndarray, seed: int) -> Loot:
    """Find the digits of one node in what passes for its reply."""
    reply = np.nan_to_num(reply)
    labels = read_labels(scene, start, reply, ROWS)
    return judge(scene, find_digits(scene, start, reply, labels, seed), labels)


class Watched:
    """Nodes whose sums are secure, and what the center sees of them.

    Args:
        scene: The nodes.
        granted: The privacy that they grant, if rows are protected by noise.
    """

    def __init__(self, scene: Scene, granted: Privacy | None = None) -> None:
        self.seen: list[SeenSum] = []
        self._secure = SecureSums(scene.federation(granted), self.seen.append)
        self._size = scene.objective.size

    def sum(self, start: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the weighted sum of the nodes' models."""
        request = ask(start, weights)
        reply = self._secure.exchange(sum=request, key=jax.random.key(0))
        return np.asarray(reply.replies["sum"]["point"], np.float64)

    def words_as_reply(self) -> np.ndarray:
        """Return what the victim has sent for the last sum, read as if it were not masked."""
        last = self.seen[-1]
        order, words = last.orders[VICTIM], last.sent[VICTIM][WORDS][0]
        place = reply_slices(DESCENT_ROUND, self._size)["point"]
        return decode(words[place], order.exponents["point"]) / order.rows[0].weight


def plain_reply(scene: Scene, start: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """Return what the victim sends where sums are plain."""
    shown = Shown(ask(start, equal), ask_all=False)
    reply = scene.federation().exchange(shown=shown, key=jax.random.key(0))
    return np.asarray(reply.replies["shown"]["point"][VICTIM], np.float64)


def difference(nodes: Watched, start: np.ndarray, equal: np.ndarray) -> np.ndarray:
    """Return the victim's reply as a center gets it that does not follow the protocol.

    It asks for the sum over all nodes, and for the sum without the victim at a model that differs in the last
    digits: nodes do not answer the same question twice. No sum is of fewer than four nodes.
    """
    whole = nodes.sum(start, equal)
    without = equal.copy()
    without[VICTIM] = 0.0
    rest = nodes.sum(start + 1e-6, without)
    return (whole - rest) / equal[VICTIM] + 1e-6 * (NODES - 1)


def attack_all(seed: int) -> dict[str, Loot]:
    """Attack one federation in all ways."""
    scene = Scene.draw(seed)
    start, equal = np.zeros(scene.objective.size), np.full(NODES, 1 / NODES)
    found = {"guessing": guess(scene, seed)}
    found["plain reply"] = attack(scene, start, plain_reply(scene, start, equal), seed)
    secure = Watched(scene)
    total = secure.sum(start, equal)
    found["masked reply"] = attack(scene, start, secure.words_as_reply(), seed)
    everybody = read_labels(scene, start, total, ROWS * NODES)
    rows = find_digits(scene, start, total, everybody, seed)
    in_sum = judge(scene, rows, read_labels(scene, start, total, ROWS))
    # The best eight of forty digits are not to be compared with eight guesses.
    found["secure sum"] = replace(in_sum, error=float("nan"))
    found["difference of two secure sums"] = attack(
        scene, start, difference(Watched(scene), start, equal), seed
    )
    noisy = Watched(scene, Privacy(EPSILON, DELTA, clip=1.0, steps=2 * STEPS))
    found["the same, with noise"] = attack(scene, start, difference(noisy, start, equal), seed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--federations", type=int, default=20)
    count = parser.parse_args().federations
    every = [attack_all(seed) for seed in range(count)]
    print(f"{count} federations; {ROWS} digits of the node attacked in each")
    print(f"{'what the center has':32} {'labels':>7} {'digits':>7} {'error':>7}")
    for name in every[0]:
        loot = [found[name] for found in every]
        labels, rows = sum(each.labels for each in loot), sum(each.rows for each in loot)
        error = np.mean([each.error for each in loot])
        total = ROWS * count
        shown = f"{error:7.3f}" if np.isfinite(error) else ""
        print(f"{name:32} {labels / total:7.1%} {rows / total:7.1%} {shown}")


if __name__ == "__main__":
    main()
