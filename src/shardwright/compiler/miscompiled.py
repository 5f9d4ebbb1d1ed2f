"""Splits that XLA's partitioner computes wrongly, refuses, or aborts the process on: one record each.

A record says which ops it is about, which of their factors must not be split, and on what evidence. ``forbid`` asks
all of them about an op; what they say becomes part of the op's sharding rule, so that no plan has such a split, and
what the plan says to the compiler keeps XLA from choosing it by itself. ``python -m benchmarks.miscompiled`` runs every
kind of op in every split and holds this table against what it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import gcd

from shardwright.compiler.behaviours import Behaviour, everywhere

Dims = tuple[tuple[int, ...], ...]
Integers = tuple[int, ...]


@dataclass(frozen=True)
class Site:
    """An op as the records see it: its kind, shapes and integer attributes, and the factors of its sharding rule.

    ``tensors`` has, for each operand and then each result, the factors of each dimension; ``shapes`` the sizes of the
    same dimensions. ``halo`` are factors along which neighbours exchange a rim, ``reduction`` those summed over.
    """

    kind: str
    shapes: tuple[Integers, ...]
    tensors: tuple[Dims, ...]
    operands: int
    halo: frozenset[int] = frozenset()
    reduction: frozenset[int] = frozenset()
    attributes: Mapping[str, Integers] = field(default_factory=dict)

    def of(self, tensor: int, dimension: int) -> int:
        """The major factor of a dimension, or -1 if it has none."""
        factors = self.tensors[tensor][dimension]
        return factors[0] if factors else -1

    def sizes(self, factor: int) -> Iterable[int]:
        """The sizes of all dimensions that a factor leads."""
        for shape, dims in zip(self.shapes, self.tensors, strict=True):
            yield from (size for size, factors in zip(shape, dims, strict=True) if factors[:1] == (factor,))

    def evenly(self, factors: Iterable[int]) -> Iterable[tuple[int, int]]:
        """Factors with the largest size that divides all dimensions that have them."""
        return [(f, gcd(*self.sizes(f))) for f in factors]


@dataclass(frozen=True)
class Forbidden:
    """What records forbid of an op.

    ``whole`` are factors that no axis may split. ``exact`` pairs a factor with the size that axes must divide to split
    it. ``apart`` are pairs of factors that are not split at once, ``spread`` factors that are split only while every
    axis of the mesh splits what is summed. ``records`` names those that apply; where there are any, the compiler is
    told exactly how the op runs.
    """

    whole: frozenset[int] = frozenset()
    exact: tuple[tuple[int, int], ...] = ()
    apart: tuple[tuple[int, int], ...] = ()
    spread: frozenset[int] = frozenset()
    records: tuple[str, ...] = ()


Factors = Callable[[Site], Iterable[int]]
Pairs = Callable[[Site], Iterable[tuple[int, int]]]


def _none(_: Site) -> tuple[()]:
    return ()


@dataclass(frozen=True)
class Splits:
    """Splits that XLA gets wrong, and what a plan does.

    Attributes:
        instead: what a plan does.
        whole: the factors that must not be split at all.
        exact: factors, each with the size that axes must divide to split it.
        apart: pairs of factors that must not be split at once.
        spread: factors that are split only while every axis of the mesh splits what is summed.
        guarded: factors that are right where operands and results are split alike, but not where the compiler is left
            to split the one and not the other.

    """

    instead: str
    whole: Factors = _none
    exact: Pairs = _none
    apart: Pairs = _none
    spread: Factors = _none
    guarded: Factors = _none

    @property
    def takes(self) -> bool:
        """Whether there is a split that plans do without for it."""
        return any(found is not _none for found in (self.whole, self.exact, self.apart, self.spread))


Miscompiled = Behaviour[Splits]


@dataclass(frozen=True)
class Avoided:
    """A split that a plan does without: what XLA makes of it, and what the plan does instead."""

    name: str
    what: str
    instead: str


def _record(name: str, op: str, what: str, evidence: str, tests: tuple[str, ...], splits: Splits) -> Miscompiled:
    where = ("compiler.miscompiled.forbid",)
    return everywhere(name, what, effect=splits, evidence=evidence, tests=tests, where=where, ops=(op,))


class Convolution:
    """The factors and sizes of a convolution, by what its dimensions are for."""

    def __init__(self, site: Site) -> None:
        numbers = site.attributes
        self.site = site
        self.image, self.kernel, self.result = numbers["input"], numbers["kernel"], numbers["output"]
        self.feature_groups, self.batch_groups = numbers["feature_group_count"][0], numbers["batch_group_count"][0]
        self.taps = tuple(site.shapes[1][d] for d in self.kernel[2:])

    @property
    def features(self) -> set[int]:
        """Factors of the features, on either side."""
        site = self.site
        places = ((0, self.image[1]), (1, self.kernel[0]), (1, self.kernel[1]), (2, self.result[1]))
        return {f for t, d in places for f in site.tensors[t][d]}

    @property
    def output_features(self) -> set[int]:
        """Factors that the kernel and the result have."""
        kernel, result = ({f for dim in self.site.tensors[t] for f in dim[:1]} for t in (1, 2))
        return kernel & result

    @property
    def is_a_product(self) -> bool:
        """Whether nothing slides: one tap, or one place for the kernel, in each dimension of the image."""
        places = [self.site.shapes[2][d] for d in self.result[2:]]
        return all(1 in pair for pair in zip(self.taps, places, strict=True))

    @property
    def transposes(self) -> bool:
        """Whether the result has its batch, features and image in another order."""
        return self.image != self.result


def _image_and_features(site: Site) -> Iterable[tuple[int, int]]:
    return product(site.halo, Convolution(site).output_features)


def _grouped_features(site: Site) -> Iterable[int]:
    convolution = Convolution(site)
    if convolution.feature_groups == 1:
        return ()
    return convolution.features if convolution.is_a_product or convolution.transposes else ()


def _grouped_sums(site: Site) -> Iterable[int]:
    convolution = Convolution(site)
    return site.tensors[1][convolution.kernel[0]] if convolution.feature_groups > 1 else ()


def _batch_groups(site: Site) -> Iterable[int]:
    if Convolution(site).batch_groups == 1:
        return ()
    return {f for dims in site.tensors for dim in dims for f in dim} - site.halo - site.reduction


def _sums_over_windows(site: Site) -> Iterable[int]:
    """Summed factors of windows, and in groups all that are summed."""
    convolution = Convolution(site)
    if max(convolution.feature_groups, convolution.batch_groups) > 1:
        return site.reduction
    windows = {
        f for t, dims in ((0, convolution.image), (1, convolution.kernel)) for d in dims[2:] for f in site.tensors[t][d]
    }
    return site.reduction & windows


def _sums_of_one_operand(site: Site) -> Iterable[int]:
    """Summed factors that do not lead a dimension of both operands."""
    images, kernels = ({f for dim in site.tensors[t] for f in dim[:1]} for t in (0, 1))
    return site.reduction - (images & kernels)


def _cut_within_a_step(site: Site) -> Iterable[int]:
    low, dilation = site.attributes["padding"][::2], site.attributes["lhs_dilation"]
    convolution = Convolution(site)
    for d, taps, before, step in zip(convolution.image[2:], convolution.taps, low, dilation, strict=True):
        if before % step and (before < 0 or taps == 1):
            yield site.of(0, d)


def _steps(site: Site) -> Iterable[tuple[int, int]]:
    """Dimensions of an image with gaps, and how many whole gaps the windows go over, if that is a number."""
    convolution, given = Convolution(site), site.attributes
    dims = zip(convolution.image[2:], convolution.result[2:], strict=True)
    for (d, e), gap, stride in zip(dims, given["lhs_dilation"], given["window_strides"], strict=True):
        if gap > 1:
            steps, rest = divmod(site.shapes[2][e] * stride, gap)
            yield site.of(0, d), 1 if rest else gcd(steps, *site.sizes(site.of(0, d)))


def _sliced(site: Site) -> Iterable[int]:
    """Dimensions of which a dynamic slice keeps some, and more than one entry: what is left can be split."""
    for d, (size, kept) in enumerate(zip(site.shapes[0], site.shapes[-1], strict=True)):
        if 1 < kept < size:
            yield site.tensors[-1][d][0]


def _padding(site: Site) -> Iterable[tuple[int, int, int, int]]:
    """Of each dimension of a pad: its factor, and how much is put before it, behind it, and between its entries."""
    low, high, interior = (site.attributes[n] for n in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    for d in range(len(interior)):
        for factor in {site.of(0, d), site.of(2, d)}:
            yield factor, low[d], high[d], interior[d]


def _of_indices(site: Site) -> frozenset[int]:
    """Factors of a scatter's indices, which stand after its operands and before as many updates."""
    return frozenset(f for factors in site.tensors[site.operands // 2] for f in factors)


def _single_entries(site: Site) -> Iterable[int]:
    """Dimensions of which a slice with steps keeps one entry."""
    for d, (step, kept) in enumerate(zip(site.attributes["strides"], site.shapes[1], strict=True)):
        if step > 1 and kept == 1 < site.shapes[0][d]:
            yield from (site.of(0, d), site.of(1, d))


def _overlapping_windows(site: Site) -> Iterable[int]:
    windows, strides = (site.attributes.get(n, ()) for n in ("window_dimensions", "window_strides"))
    for d, window in enumerate(windows):
        if window > (strides[d] if strides else 1):
            yield from (site.of(t, d) for t in (0, 1, site.operands))


_MATRIX = "docs/benchmarks/miscompiled.md: runs on CPU devices, jaxlib 0.10.2 and 0.12.0"

TABLE: tuple[Miscompiled, ...] = (
    _record(
        "image and output features at once",
        "convolution",
        "other numbers where batch, height and output features lie on three axes",
        evidence="Runs on CPU devices, jaxlib 0.10.2 and 0.12.0",
        tests=("test_obeyed.py::test_convolutions_are_not_split_along_image_and_features_at_once",),
        splits=Splits("one of the two is split", apart=_image_and_features),
    ),
    _record(
        "features of a grouped convolution with one tap, or in another order than its result's",
        "convolution",
        "other numbers, no program, or a failed check of the partitioner",
        evidence=_MATRIX,
        tests=("test_miscompiled.py::test_whatever_is_asked_of_grouped_convolutions_is_right",),
        splits=Splits(
            "features are whole at such a convolution: its batch and image can be split", whole=_grouped_features
        ),
    ),
    _record(
        "summed features of a grouped convolution",
        "convolution",
        "other numbers where the image is split as well",
        evidence=_MATRIX,
        tests=("test_miscompiled.py::test_sums_over_the_image_in_groups_of_features",),
        splits=Splits("the features within a group are whole", whole=_grouped_sums),
    ),
    _record(
        "groups of the batch",
        "convolution",
        "other numbers, and failed checks of the partitioner (convolution_handler.cc) that end the process",
        evidence=_MATRIX,
        tests=("test_miscompiled.py::test_every_group_of_the_gradient_of_a_grouped_convolution",),
        splits=Splits(
            "at such a convolution, the gradient of a grouped one by its kernel, groups are whole", whole=_batch_groups
        ),
    ),
    _record(
        "sums of which one operand alone is split",
        "convolution",
        "other numbers",
        evidence="docs/benchmarks/random_programs.md: runs on CPU devices, jaxlib 0.10.2",
        tests=("test_miscompiled.py::test_a_convolution_whose_window_is_turned_around",),
        splits=Splits("what is summed is split in both operands, or whole", whole=_sums_of_one_operand),
    ),
    _record(
        "sums over windows, or in groups, over some of the axes",
        "convolution",
        "sums that are too large by the number of devices on the other axes: where an image is split "
        "by one of two axes, gradients of kernels come out doubled",
        evidence=_MATRIX + "; plain jax.jit with the batch on one of two axes shows it, jaxlib 0.10.2 and 0.12.0",
        tests=("test_miscompiled.py::test_gradients_of_kernels_on_some_of_the_axes",),
        splits=Splits("the sums are split over all axes, or over none", spread=_sums_over_windows),
    ),
    _record(
        "an image that is spread out, and cut or moved within a step",
        "convolution",
        "a failed check of the partitioner, which ends the process: where it is cut, or where one tap looks at "
        "what was moved and a device has one row",
        evidence=_MATRIX,
        tests=(
            "test_miscompiled.py::test_a_spread_out_image_that_is_cut",
            "test_miscompiled.py::test_one_tap_on_an_image_that_is_spread_out_and_moved",
        ),
        splits=Splits("the image is whole along that dimension", whole=_cut_within_a_step),
    ),
    _record(
        "an image that is spread out, in parts that begin within a step",
        "convolution",
        "other numbers where a part of the result does not begin at an entry of the image",
        evidence="docs/benchmarks/random_programs.md: runs on CPU devices, jaxlib 0.10.2",
        tests=("test_miscompiled.py::test_an_image_that_is_spread_out_in_parts",),
        splits=Splits("axes divide the steps; else the image is whole along that dimension", exact=_steps),
    ),
    _record(
        "uneven updates of a scatter",
        "scatter",
        "updates that are padding among the others, on a mesh with further axes; and where each batch has indices "
        "of its own that have no sign, as the gradient of a sort has, a failed check of the partitioner",
        evidence=_MATRIX,
        tests=("test_miscompiled.py::test_gradients_of_a_diagonal_of_odd_size",),
        splits=Splits(
            "updates and indices are split by axes that divide them",
            exact=lambda site: site.evenly(site.reduction | _of_indices(site)),
        ),
    ),
    _record(
        "a Fourier transform along what is split",
        "fft",
        "no program, where the result is split along the transform",
        evidence="Runs on CPU devices; jaxlib 0.10.2",
        tests=("test_miscompiled.py::test_a_fourier_transform_whose_result_is_split",),
        splits=Splits(
            "the result is made whole there and cut afterwards",
            whole=lambda site: [site.of(t, -1 - d) for d in range(len(site.attributes["fft_length"])) for t in (0, 1)],
        ),
    ),
    _record(
        "uneven indices of a gather",
        "gather",
        "other entries, on a mesh with further axes; no program where partial sums are scattered along them",
        evidence="docs/benchmarks/random_programs.md: runs on CPU devices, jaxlib 0.10.2",
        tests=("test_miscompiled.py::test_partial_sums_of_a_gather_are_not_scattered_unevenly",),
        splits=Splits(
            "indices are split by axes that divide them, and sums are whole before they are cut",
            exact=lambda site: site.evenly({f for factors in site.tensors[1] for f in factors}),
        ),
    ),
    _record(
        "a slice with steps that keeps one entry",
        "slice",
        "another entry, or no program, where the slice ends within its first step and does not begin at 0",
        evidence=_MATRIX + "; plain jax.jit shows it, jaxlib 0.10.2 and 0.12.0",
        tests=("test_miscompiled.py::test_a_slice_with_steps_that_keeps_one_entry_is_that_entry",),
        splits=Splits("the dimension is whole", whole=_single_entries),
    ),
    _record(
        "a dynamic slice that is cut again",
        "dynamic_slice",
        "another part of the operand where the index is out of bounds: two slices in a row are merged, and their "
        "indices added before they are clamped",
        evidence="Runs on CPU devices; plain jax.jit with a sharding constraint shows it, jaxlib 0.10.2 only",
        tests=("test_miscompiled.py::test_a_dynamic_slice_is_clamped",),
        splits=Splits("the index is clamped first", guarded=_sliced),
    ),
    _record(
        "a pad of what is whole",
        "pad",
        "other numbers where the operand is whole and the result split along a dimension that is padded between "
        "its entries, or shifted",
        evidence=_MATRIX + "; ReshardAsWindowedInput in spmd_partitioner.cc drops what is left of the padding",
        tests=("test_miscompiled.py::test_gradients_of_every_second_entry",),
        splits=Splits(
            "operand and result are split alike, or else the result is made whole and cut afterwards",
            guarded=lambda site: [f for f, low, _, interior in _padding(site) if interior or low],
        ),
    ),
    _record(
        "windows over what is whole and spread out",
        "reduce_window",
        "other numbers, no program, or a failed check of the partitioner (spmd_partitioner.cc) where the operand "
        "is whole and the result split",
        evidence=_MATRIX,
        tests=("test_miscompiled.py::test_windows_over_what_is_spread_out",),
        splits=Splits(
            "operand and result are split alike, or else the result is made whole and cut afterwards",
            guarded=lambda site: [
                site.of(0, d) for d, step in enumerate(site.attributes.get("base_dilations", ())) if step > 1
            ],
        ),
    ),
    _record(
        "windows over several tensors whose results are whole",
        "reduce_window",
        "a failed check of the partitioner (spmd_partitioner.cc), which ends the process, where the tensors are "
        "split and the results are not",
        evidence=_MATRIX + "; jaxlib 0.10.2 only",
        tests=("test_miscompiled.py::test_windows_over_two_tensors",),
        splits=Splits(
            "tensors and results are split alike, and the results gathered afterwards",
            guarded=lambda site: (
                {f for dims in site.tensors for dim in dims for f in dim}
                if len(site.tensors) > site.operands + 1
                else ()
            ),
        ),
    ),
    _record(
        "a pad that cuts off a part of a step",
        "pad",
        "a failed check of the partitioner (spmd_partitioner.cc), which ends the process",
        evidence=_MATRIX,
        tests=("test_miscompiled.py::test_a_pad_that_cuts_off_a_part_of_a_step",),
        splits=Splits(
            "the dimension is whole",
            whole=lambda site: [
                f for f, low, _, interior in _padding(site) if interior and low < 0 and low % (interior + 1)
            ],
        ),
    ),
    _record(
        "the gradient of a maximum over windows that overlap",
        "select_and_scatter",
        "other numbers: what windows of two shards give to one entry is not added up",
        evidence="Runs on CPU devices; jaxlib 0.10.2 and 0.12.0",
        tests=("test_miscompiled.py::test_gradients_of_a_maximum_over_windows",),
        splits=Splits("the dimension is whole", whole=_overlapping_windows),
    ),
)

_BY_KIND: Mapping[str, tuple[Miscompiled, ...]] = {
    kind: tuple(record for record in TABLE if kind in record.ops)
    for kind in {kind for record in TABLE for kind in record.ops}
}
KINDS = frozenset(f"stablehlo.{kind}" for kind in _BY_KIND)
"""Ops that some record is about, as MLIR names them."""


def forbid(site: Site) -> Forbidden:
    """What the records forbid of an op."""
    whole: set[int] = set()
    exact: dict[int, int] = {}
    apart: set[tuple[int, int]] = set()
    spread: set[int] = set()
    records: list[str] = []
    for record in _BY_KIND.get(site.kind, ()):
        splits = record.effect
        own_whole = set(splits.whole(site)) - {-1}
        own_exact = {f: size for f, size in splits.exact(site) if f >= 0}
        own_spread = set(splits.spread(site)) - {-1}
        own_apart = {(a, b) for a, b in splits.apart(site) if a != b and -1 not in (a, b)}
        if own_whole or own_exact or own_apart or own_spread or any(f >= 0 for f in splits.guarded(site)):
            spread |= own_spread
            whole |= own_whole
            exact |= {f: gcd(size, exact.get(f, 0)) for f, size in own_exact.items()}
            apart |= {(min(pair), max(pair)) for pair in own_apart}
            records.append(record.name)
    return Forbidden(
        frozenset(whole), tuple(sorted(exact.items())), tuple(sorted(apart)), frozenset(spread), tuple(records)
    )


def splits_taken(records: Iterable[str]) -> tuple[Avoided, ...]:
    """Of the records of these names, those for which a plan does without a split."""
    found = (record for record in TABLE if record.name in records and record.effect.takes)
    return tuple(Avoided(record.name, record.what, record.effect.instead) for record in found)
