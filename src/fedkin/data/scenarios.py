r"""Scenarios (the paper's settings 1-4, or a user's own), and drawing a federation from one.

The paper, TOML files and the option `--setting` say "setting". In code it is a scenario, because
settings are the parameters of a method.

There are two groups of nodes: a minority and a majority. Every image is drawn independently: first a
merged class with the group's probabilities P, then an image of that merged class uniformly, with
replacement (`sec:datageneration1`). Merged classes affect the draw only; the task keeps all its
classes. In settings 2 and 4 the majority's labels are permuted (`sec:datageneration2`). In settings
3 and 4 its images are turned by 90 degrees, in a direction drawn once (`sec:datageneration3`).
"""

import difflib
import itertools
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)

from fedkin.data.downsampled_imagenet import PAPER_GROUPS
from fedkin.data.federated import (
    FederatedData,
    FederationDescription,
    NodeDescription,
    Target,
    build_federation,
)
from fedkin.data.images import ImageSource
from fedkin.errors import InputError
from fedkin.messages import check_printable, in_plain_words

Label = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Scenario(BaseModel):
    """How the two groups differ, and how much data each node has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(check_printable)] = "own"
    merged_classes: tuple[tuple[Label, ...], ...]
    """Labels that are drawn together: C1, C2, …"""
    minority: tuple[Probability, ...]
    """P of the minority: the probability of every merged class."""
    majority: tuple[Probability, ...]
    permutation: dict[Label, Label] = {}
    """The majority's labels: `{2: 0}` means that it labels class 2 as 0. Other labels stay."""
    rotation: bool = False
    """Whether the majority's images are turned by 90 degrees."""
    train_size: PositiveInt
    """Images per node."""
    validation_size: PositiveInt
    test_size: PositiveInt

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        labels = list(itertools.chain(*self.merged_classes))
        if not labels or not all(self.merged_classes):
            raise ValueError("every merged class needs at least one label")
        if len(set(labels)) < len(labels):
            twice = next(label for label in labels if labels.count(label) > 1)
            raise ValueError(f"label {twice} is in the merged classes twice")
        for group in ("minority", "majority"):
            probabilities = getattr(self, group)
            if len(probabilities) != len(self.merged_classes):
                raise ValueError(
                    f"{group} has {len(probabilities)} probabilities for "
                    f"{len(self.merged_classes)} merged classes"
                )
            if not math.isclose(sum(probabilities), 1, abs_tol=1e-6):
                raise ValueError(f"the {group} probabilities sum to {sum(probabilities):g}, not 1")
        if set(self.permutation) != set(self.permutation.values()):
            raise ValueError(
                "the permutation must have the same labels on both sides, but they are "
                f"{sorted(self.permutation)} and {sorted(self.permutation.values())}"
            )
        return self


def _cycle(*labels: int) -> dict[int, int]:
    """Return the permutation first label → second → … → first."""
    return dict(zip(labels, (*labels[1:], labels[0]), strict=True))


def _interleaved_cycle(groups: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the 12-cycle of `sec:datageneration2`: each group's first class, then second, then third."""
    return _cycle(*(group[place] for place in range(3) for group in groups))


_Probabilities = tuple[float, ...]

_MNIST_CLASSES = ((2, 4, 6), (0, 3), (1, 8), (5, 7, 9))
_TINY_CLASSES = tuple(tuple(range(first, first + 10)) for first in (0, 10, 20, 30))
_group_ends = itertools.accumulate(len(group) for group in PAPER_GROUPS)
_IMAGENET_CLASSES = tuple(
    tuple(range(end - len(group), end))
    for group, end in zip(PAPER_GROUPS, _group_ends, strict=True)
)
_GRAY = ((0.42, 0.08, 0.38, 0.12), (0.12, 0.38, 0.08, 0.42))
_COLOR = ((0.36, 0.04, 0.54, 0.06), (0.04, 0.36, 0.06, 0.54))


def _setting_four(
    merged_classes: tuple[tuple[int, ...], ...],
    probabilities: tuple[_Probabilities, _Probabilities],
    permutation: dict[int, int],
    sizes: tuple[int, int, int],
) -> Scenario:
    """Return setting 4 of a data set; `sizes` are those of a node, validation and test."""
    return Scenario(
        merged_classes=merged_classes,
        minority=probabilities[0],
        majority=probabilities[1],
        permutation=permutation,
        rotation=True,
        train_size=sizes[0],
        validation_size=sizes[1],
        test_size=sizes[2],
    )


_SETTING_FOUR: dict[str, Scenario] = {
    "mnist": _setting_four(_MNIST_CLASSES, _GRAY, _cycle(2, 0, 1, 5), (4000, 500, 5000)),
    "fashion-mnist": _setting_four(_MNIST_CLASSES, _GRAY, _cycle(2, 0, 1, 5), (4000, 500, 5000)),
    "cifar10": _setting_four(
        ((1, 9), (0, 8), (2, 3, 4), (5, 6, 7)), _COLOR, _cycle(1, 0, 2, 5), (4000, 500, 5000)
    ),
    "downsampled-imagenet": _setting_four(
        _IMAGENET_CLASSES, _COLOR, _interleaved_cycle(_IMAGENET_CLASSES), (4000, 1500, 1000)
    ),
    "tiny-imagenet32": _setting_four(
        _TINY_CLASSES, _COLOR, _interleaved_cycle(_TINY_CLASSES), (4000, 1500, 1000)
    ),
    # MNIST's classes. 15 nodes with 200 images draw each of the 1,198 training images 2.5 times on average.
    "digits": _setting_four(_MNIST_CLASSES, _GRAY, _cycle(2, 0, 1, 5), (200, 60, 500)),
}
"""Setting 4 by data set. Settings 1-3 leave parts of it out."""

_ALIASES = {"cifar10-jpeg": "cifar10"}


def has_paper_scenario(dataset: str) -> bool:
    """Tell whether settings 1-4 exist for a data set."""
    return _ALIASES.get(dataset, dataset) in _SETTING_FOUR


def paper_scenario(dataset: str, number: int) -> Scenario:
    """Return setting 1 (class frequencies differ), 2 (and labels), 3 (1 and rotation) or 4 (all).

    >>> scenario = paper_scenario("digits", 2)
    >>> scenario.permutation, scenario.rotation, scenario.train_size
    ({2: 0, 0: 1, 1: 5, 5: 2}, False, 200)
    """
    known = _ALIASES.get(dataset, dataset)
    if not has_paper_scenario(dataset):
        near = difflib.get_close_matches(dataset.lower(), _SETTING_FOUR, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(
            f"settings 1-4 exist for {', '.join(_SETTING_FOUR)}, not for {dataset!r}{meant}: write a "
            "setting for it in a TOML file, as docs/data.md shows"
        )
    if number not in (1, 2, 3, 4):
        raise InputError(f"there is no setting {number}: choose 1, 2, 3 or 4")
    full = _SETTING_FOUR[known]
    return full.model_copy(
        update={
            "name": f"{known}, setting {number}",
            "permutation": full.permutation if number in (2, 4) else {},
            "rotation": number in (3, 4),
        }
    )


def load_scenario(path: Path) -> Scenario:
    """Read a scenario from a TOML file whose keys are the fields of `Scenario`."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path} with a setting: check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    try:
        return Scenario(**{"name": path.stem, **content})
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(step) for step in each['loc'])}: {in_plain_words(each['msg'])}".removeprefix(
                ": "
            )
            for each in error.errors()
        ]
        raise InputError(f"{path}: {'; '.join(problems).replace('Value error, ', '')}") from error


# Every role has its own random stream, so that the size of one draw does not change another.
_STREAMS = {"minority": 0, "majority": 1, "validation": 2, "test": 3, "rotation": 4}


def _generator(seed: int, role: str, number: int = 0) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_STREAMS[role], number)))


def sample_federation(
    source: ImageSource,
    scenario: Scenario,
    target: Target,
    seed: int,
    minority_nodes: int = 5,
    majority_nodes: int = 10,
    train_size: int | Sequence[int] | None = None,
    validation_size: int | None = None,
    test_size: int | None = None,
) -> FederatedData:
    """Draw a federation. The result depends on the arguments only.

    Sizes default to the scenario's. `train_size` may be a list with one number per node, minority
    first. A node's draw depends on the seed and its place in its group only, and a longer draw begins
    with the shorter one.

    >>> from fedkin.data.sources import load_images
    >>> data = sample_federation(load_images("digits"), paper_scenario("digits", 2), "minority", 0)
    >>> len(data.nodes), sum(data.similar), data.nodes[0].inputs.shape
    (15, 5, (200, 8, 8, 1))
    """
    if target not in ("minority", "majority"):
        raise InputError(f"the target is 'minority' or 'majority', not {target!r}")
    if seed < 0:
        raise InputError(f"the seed is {seed}; it must be 0 or more")
    if minority_nodes < 0 or majority_nodes < 0 or minority_nodes + majority_nodes < 1:
        raise InputError(
            f"{minority_nodes} minority and {majority_nodes} majority nodes: at least one is needed"
        )
    _check_fit(source, scenario)
    members: list[tuple[Target, int]] = [
        *(("minority", number) for number in range(minority_nodes)),
        *(("majority", number) for number in range(majority_nodes)),
    ]
    sizes = train_size if train_size is not None else scenario.train_size
    if isinstance(sizes, int):
        sizes = [sizes] * len(members)
    if len(sizes) != len(members):
        raise InputError(
            f"train_size has {len(sizes)} sizes for {len(members)} nodes: give one number per node"
        )
    validation_size = validation_size if validation_size is not None else scenario.validation_size
    test_size = test_size if test_size is not None else scenario.test_size
    if min(*sizes, validation_size, test_size) < 1:
        raise InputError("every node, the validation set and the test set need at least one image")

    def draw(part: str, group: Target, size: int, role: str, number: int = 0) -> tuple[int, ...]:
        pools = _pools(source, scenario, part)
        generator = _generator(seed, role, number)
        return tuple(draw_from_pools(pools, getattr(scenario, group), size, generator).tolist())

    rotation = None
    if scenario.rotation:
        clockwise = _generator(seed, "rotation").random() < 0.5
        rotation = "clockwise" if clockwise else "anticlockwise"
    description = FederationDescription(
        source=source.name,
        checksum=source.checksum,
        setting=scenario.name,
        target=target,
        seed=seed,
        permutation=tuple(
            scenario.permutation.get(label, label) for label in range(len(source.classes))
        ),
        rotation=rotation,
        nodes=tuple(
            NodeDescription(
                name=f"{group}-{number + 1}",
                group=group,
                indices=draw("train", group, size, group, number),
            )
            for (group, number), size in zip(members, sizes, strict=True)
        ),
        validation=draw("train", target, validation_size, "validation"),
        test=draw("test", target, test_size, "test"),
    )
    return build_federation(source, description)


def draw_from_pools(
    pools: Sequence[np.ndarray],
    probabilities: Sequence[float] | np.ndarray,
    size: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Draw indices of images: a pool by its probability, then one of its images uniformly."""
    which_pool, which_image = generator.random((size, 2)).T
    cumulative = np.cumsum(probabilities)
    pool_numbers = np.searchsorted(cumulative / cumulative[-1], which_pool, side="right")
    lengths = np.array([len(pool) for pool in pools])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    places = (which_image * lengths[pool_numbers]).astype(np.int64)
    return np.concatenate(pools)[starts[pool_numbers] + places]


def _pools(source: ImageSource, scenario: Scenario, part: str) -> list[np.ndarray]:
    labels = getattr(source, f"{part}_labels")
    return [np.flatnonzero(np.isin(labels, merged)) for merged in scenario.merged_classes]


def _check_fit(source: ImageSource, scenario: Scenario) -> None:
    highest = max(*itertools.chain(*scenario.merged_classes), *scenario.permutation, 0)
    if highest >= len(source.classes):
        raise InputError(
            f"setting {scenario.name!r} names class {highest}, but {source.name} has "
            f"{len(source.classes)} classes, 0 to {len(source.classes) - 1}"
        )
    height, width = source.train_images.shape[1:3]
    if scenario.rotation and height != width:
        raise InputError(
            f"images of {source.name} are {width}x{height} pixels, but only square images can be "
            "turned by 90 degrees: set rotation = false"
        )
    for part in ("train", "test"):
        pools = _pools(source, scenario, part)
        for merged, pool, *chances in zip(
            scenario.merged_classes, pools, scenario.minority, scenario.majority, strict=True
        ):
            if not len(pool) and any(chances):
                raise InputError(
                    f"the {part} part of {source.name} has no image of the classes "
                    f"{', '.join(map(str, merged))}, which setting {scenario.name!r} draws from"
                )
