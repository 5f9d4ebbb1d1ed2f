"""A plan: decisions about a function on a mesh, what they imply, and how to run it so."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import Mesh, PartitionSpec

from shardwright._console import plain_text
from shardwright._files import write_whole
from shardwright.analysis import Analysis
from shardwright.apply import (
    Annotation,
    Sharded,
    annotated_stablehlo,
    calls_python,
    export_annotated,
    spec,
)
from shardwright.compiler.invoking import RESERVED, options_within
from shardwright.compiler.margins import Margin
from shardwright.devices import Device
from shardwright.devices.find import default_backend
from shardwright.errors import PlanError
from shardwright.frontend.calls import positional_call
from shardwright.frontend.in_place import Updating
from shardwright.frontend.leaves import memory_kind_of, opened
from shardwright.frontend.names import function_name, leaf_paths, parameter_names
from shardwright.frontend.trace import lowering_platform
from shardwright.plan.execution import jit_plan, sharded_function
from shardwright.plan.facts import (
    Decided,
    MeshChoice,
    OwnSharding,
    WholeKernel,
    cost_without,
    find_own_shardings,
    whole_kernels,
)
from shardwright.plan.file import save
from shardwright.plan.placement import device_mesh, place
from shardwright.plan.plan_text import plan_table
from shardwright.plan.summary import plan_dict
from shardwright.plan.tuning import Tuning
from shardwright.plan.verdicts import CompilerVerdict, Verdict, Verified
from shardwright.price import (
    Collective,
    Cost,
    CostModel,
    DevicePrices,
    Estimate,
    Partitioned,
    Places,
    make_estimate,
    partition_program,
)
from shardwright.price.bound import Bound, least_step_seconds
from shardwright.price.estimate import margin_of
from shardwright.request import MeshShape
from shardwright.search import Search
from shardwright.space import Decision, Whole
from shardwright.space.state import State

if TYPE_CHECKING:
    from shardwright.advice import Advice
    from shardwright.explain import Explanation


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan holds decisions about ``fn(*args)`` on a mesh; ``sw.partition``, ``sw.evaluate`` and ``sw.load`` make one.

    ``args`` are the shapes of the arguments, those of keyword arguments last; static arguments are part of ``fn``.
    ``decisions`` are in order of priority: in each tensor, an axis goes to its first decision that the tensor has.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    result: Any
    analysis: Analysis
    partitioned: Partitioned
    decisions: tuple[Decision | Whole, ...]
    device: Device
    memory_bytes: int
    """The bytes that a device may hold: the limit for ``fits``."""
    donate: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that the function was traced with: ``trip_counts``, ``rules``, ``platform``, ``constraints``, …"""
    search: Search | None = None
    """How the decisions were found: seconds, evaluations, simulations, the history of the best cost."""
    verdict: CompilerVerdict | None = None
    """What the compiler made of the plan, if it was asked while planning."""
    alternatives: tuple[Plan, ...] = ()
    """The other plans, best first, if plans were ranked by the compiler."""
    meshes: tuple[MeshChoice, ...] = ()
    """The meshes that were tried, best first, if the shape of the mesh was chosen with the plan."""
    decided: Decided | None = None
    """What the user had decided by ``pin`` and ``replicate``, if the plan was searched for."""
    tuning: Tuning | None = None
    """What tuning by a compiler left behind, if the plan was tuned: options, what they brought, what was learned."""
    given_costs: CostModel | None = field(default=None, repr=False)
    """The cost model of the search, so that ``costs`` need not be made again."""

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh's axes and their sizes."""
        shape = self.partitioned.mesh
        return dict(zip(shape.names, shape.sizes, strict=True))

    @property
    def in_specs(self) -> Any:
        """A ``PartitionSpec`` for every leaf of the arguments, in their structure; None for leaves that are no arrays.

        As in ``in_shardings`` of ``jax.jit``, keyword arguments and static arguments are left out.
        """
        return self.argument_specs[: len(self.args) - len(self._keywords)]

    @property
    def kwarg_specs(self) -> dict[str, Any]:
        """A ``PartitionSpec`` for every leaf of the keyword arguments, by their names."""
        first = len(self.args) - len(self._keywords)
        return dict(zip(self._keywords, self.argument_specs[first:], strict=True))

    @cached_property
    def argument_specs(self) -> Any:
        """The specs of all of ``args``, those of keyword arguments last."""
        planned = {a.path: spec(self._sharding(a.value, a.path), self._axes) for a in self.analysis.program.arguments}
        specs = [planned.get(path, PartitionSpec()) for path in self.argument_paths]
        return opened(jax.tree.unflatten(jax.tree.structure(self.args), specs), lambda _: None)

    @cached_property
    def argument_kinds(self) -> tuple[str | None, ...]:
        """The kind of host memory in which each leaf of the arguments lies (``"pinned_host"``), or None."""
        kinds = {a.path: a.memory_kind for a in self.analysis.program.arguments}
        leaves = jax.tree.leaves(self.args)
        # An argument that the result does not depend on is none of the program's.
        return tuple(
            kinds.get(path) or memory_kind_of(leaf) for path, leaf in zip(self.argument_paths, leaves, strict=True)
        )

    @property
    def out_specs(self) -> Any:
        """A ``PartitionSpec`` for every leaf of the result, in its structure."""
        return self.result_specs[0] if isinstance(self.fn, Updating) else self.result_specs

    @cached_property
    def result_specs(self) -> Any:
        """The specs of all that ``fn`` returns; what it changes in place comes last."""
        values = self.analysis.program.regions[0].results
        leaves = jax.tree.leaves(self.result)
        specs = [
            spec(self.partitioned.values[v][: len(leaf.shape)], self._axes)
            for v, leaf in zip(values, leaves, strict=True)
        ]
        return opened(jax.tree.unflatten(jax.tree.structure(self.result), specs), lambda _: None)

    @cached_property
    def estimate(self) -> Estimate:
        """What a step costs on the device: its seconds, its bytes, and what they are made of."""
        return make_estimate(self.costs, self.partitioned, self.memory_bytes)

    @cached_property
    def costs(self) -> CostModel:
        """The cost model that prices this plan, and other plans of the same program on the same mesh."""
        partitioned = self.partitioned
        if self.given_costs is not None:
            return self.given_costs
        return CostModel(partitioned.places, partitioned.mesh, self.device, partitioned.state.whole)

    @property
    def estimate_cost(self) -> Cost:
        """The seconds and bytes of the estimate alone, which take no time to find."""
        return self.costs.evaluate(self.partitioned.state)

    def bound(self) -> Bound:
        """Return the seconds that no plan on this mesh takes less than by the same prices, memory aside."""
        cost = self.estimate_cost
        return Bound(least_step_seconds(self.costs), cost.step_seconds, cost.exposed_seconds)

    @property
    def fits(self) -> bool | None:
        """Whether the plan fits the memory of a device and of its host; None if that is too close to tell.

        The compiler says so if it was asked, and otherwise the estimate. The estimate errs, so it gives an answer only
        outside of the measured margin of its error (``plan.margin``). What lies on the host is always estimated,
        because no compiler looks at it.
        """
        if self.estimate_cost.host_over_bytes:
            return False
        if self.verdict is not None and self.verdict.fits is not None:
            return self.verdict.fits
        return self.margin.fits(self.estimate_cost.peak_bytes, self._held_bytes, self.memory_bytes)

    @property
    def estimated_to_fit(self) -> bool:
        """Whether the estimate is within the limit, whatever its error may be. Plans are compared by it."""
        return not self.estimate_cost.over_bytes(self.memory_bytes)

    @property
    def fits_by(self) -> str:
        """Who says whether the plan ``fits``: "compiler" or "estimate"."""
        by_compiler = self.verdict is not None and self.verdict.fits is not None
        return "compiler" if by_compiler and not self.estimate_cost.host_over_bytes else "estimate"

    @cached_property
    def margin(self) -> Margin:
        """The margin of error: how far the memory of compiled programs of this kind was from its estimate."""
        return margin_of(self.analysis.program, self.device.platform)

    @property
    def bytes_range(self) -> tuple[int, int]:
        """The least and the most bytes that a device will need, by the margin of the estimate."""
        needed, held, margin = self.estimate_cost.peak_bytes, self._held_bytes, self.margin
        return math.ceil(margin.least_bytes(needed, held)), math.ceil(margin.most_bytes(needed, held))

    @property
    def compiler_options(self) -> dict[str, str]:
        """The options of XLA that belong to the plan; ``plan.jit`` passes them.

        They are those that tuning kept. And if the limit is below the memory of a TPU, the compiler is told so;
        otherwise it would use more.
        """
        within = options_within(self.device.compiler[RESERVED], self.device.usable_bytes, self.memory_bytes)
        return {**within, **(self.tuning.compiler_options if self.tuning is not None else {})}

    @cached_property
    def own_shardings(self) -> tuple[OwnSharding, ...]:
        """The shardings that the program has already, and that the plan keeps."""
        return find_own_shardings(self.analysis.program)

    @cached_property
    def whole_kernels(self) -> tuple[WholeKernel, ...]:
        """The Pallas kernels that every device runs in full, because no axis splits them."""
        return whole_kernels(self)

    @cached_property
    def cost_without_own(self) -> Cost:
        """What the best plan of a short search would cost without the program's own shardings."""
        return cost_without(self, self.own_shardings)

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """The uses of ``jax.checkpoint`` to add, drop or change, and what the plan would then cost, best first.

        They are worked out when they are asked for, and nothing is changed. Without any that would matter it is empty.
        """
        from shardwright.advice import give_advice

        return give_advice(self)

    @cached_property
    def argument_paths(self) -> list[str]:
        """The name of every leaf of the arguments, in order: ``state.params.w``."""
        return leaf_paths(parameter_names(self.fn, len(self.args)), self.args)

    @property
    def platform(self) -> str:
        """The platform that the program was lowered for while planning."""
        if calls_python(self.analysis.program):
            return default_backend()
        return self.options.get("platform") or lowering_platform(self.device.platform)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Every collective that the decisions imply."""
        return self.partitioned.collectives

    def make_mesh(self, devices: Sequence[Any] | None = None) -> Mesh:
        """Make a jax Mesh of the plan's shape over the local devices, or those given."""
        return device_mesh(self.partitioned.mesh, devices)

    def jit(self, mesh: Mesh | None = None, **jit_options: Any) -> Any:
        """Return ``jax.jit`` of the function with every decision inside; arguments are donated as planned.

        It takes positional and keyword arguments as the function does. ``mesh`` is any mesh of the plan's axes and
        sizes: local devices, an ahead-of-time topology, several processes. Further options go to ``jax.jit``.
        """
        return jit_plan(self, mesh if mesh is not None else self.make_mesh(), jit_options)

    def export(self, platform: str) -> tuple[jax.export.Exported, Annotation]:
        """Return the annotated program for a platform, as ``jax.export`` makes it, and how much was annotated."""
        if calls_python(self.analysis.program):
            raise PlanError(
                f"{self.analysis.program.name} calls back into Python (jax.debug.print, jax.pure_callback, …), which "
                "JAX cannot export to another process; plan.jit runs it in this one."
            )
        if platform not in self._exports:
            self._exports[platform] = export_annotated(self.sharded, platform)
        return self._exports[platform]

    @cached_property
    def _exports(self) -> dict[str, tuple[jax.export.Exported, Annotation]]:
        return {}

    @cached_property
    def worked_out(self) -> dict[Any, Any]:
        """A place where others keep what they have worked out about this plan; it is not written to files."""
        return {}

    @property
    def sharded(self) -> Sharded:
        """The function with its planned shardings, ready to be annotated."""
        return sharded_function(self)

    def place(self, tree: Any, mesh: Mesh | None = None, argument: int | str | None = None) -> Any:
        """Put an argument, or a part of one, on the devices of the mesh by its specs, as ``jax.device_put`` does.

        ``argument`` is its position or path; by default it is the argument with the structure and shapes of the tree.
        As with ``jax.device_put``, what is in the right place already is not copied, so donating it donates the
        original.
        """
        mesh = mesh if mesh is not None else self.make_mesh()
        return place(self, tree, mesh, argument)

    def explain(self, path: str = "") -> Explanation:
        """Explain why an argument, or a line of the program, is sharded as it is, and what alternatives would cost.

        ``path`` is the path of an argument, a prefix or a glob, a source line (``"model.py:120"``) or a function.
        """
        from shardwright.explain import explain

        return explain(self, path)

    @property
    def verified(self) -> Verified | None:
        """The verdicts on this plan, by what it was checked on; None if it was never checked.

        They come from ``plan.verify``, and from compilers that were asked while planning. A plan that was never
        compiled may meet a defect of the compiler, which in ``plan.jit`` can end the whole process.
        """
        ranked = {self.verdict.on: self.verdict} if self.verdict is not None else {}
        verdicts = {**ranked, **self._verdicts}
        return Verified(verdicts) if verdicts else None

    @cached_property
    def _verdicts(self) -> dict[str, Verdict]:
        return {}

    def verify(self, on: str, **options: Any) -> Verdict:
        """Check the plan by a compiler, by the compiler's own partitioner, or by running it.

        ``"tpu:v5e:4x4"``, ``"gpu:a100-80:8"`` and ``"cpu"`` compile it for such devices, which need not be present.
        ``"run"`` runs it on CPU devices and compares it with the plain function. ``"shardy"`` compares its collectives
        with those of the compiler's own partitioner. The verdict is kept in ``plan.verified``.
        """
        from shardwright.verify import verify

        self._verdicts[on] = verdict = verify(self, on, **options)
        return verdict

    def tune(self, on: str, *, compiles: int = 8, seconds: float | None = None, progress: bool | None = None) -> Plan:
        """Return the best plan that the compiler for a target such as ``"tpu:v5e:4x4"`` can be found to prefer.

        The plan is compiled, the prices of its program are corrected by what the compiler says, and plans that are then
        the best are searched for and compiled, until none is better by 1%. Options of the compiler are tried on the
        best of them, and kept where they save 1%. There are at most so many ``compiles``, and none is begun after so
        many ``seconds``. An interrupt (Ctrl-C) returns the best so far. What was compiled is remembered in the user's
        cache folder, so that a second run takes no time and an interrupted one goes on.

        What ``sw.partition`` was told by ``pin`` and ``replicate`` is kept. Of a plan that was made by hand, or read
        from a file, everything may change. The result is never slower than the plan by the compiler's figures; its
        ``tuning`` says what was tried and learned, and ``alternatives`` are the other plans.

        Args:
            on: the target, whose devices are the plan's.
            compiles: the most compilations.
            seconds: after which no compilation is begun; by default there is no such limit.
            progress: whether to show a progress bar; by default only on a terminal.

        Raises:
            CompilerMissingError: the target's compiler is not installed.
            PlanError: the target has other devices than the plan, or its compiler tells no seconds or takes no plan.

        """
        from shardwright.tune import tune_plan

        return tune_plan(self, on, compiles=compiles, seconds=seconds, progress=progress)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file as JSON: the mesh, the decisions in words, and what the program looks like."""
        save(self, path)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a file as one HTML page of pictures, plots and tables, which needs no network."""
        from shardwright.report import write_report

        write_report(self, path)

    def to_python(self, *, constraints: bool = True) -> str:
        """Return Python code to paste: the mesh, the specs and the call of ``jax.jit``, without Shardwright.

        Comments say what the plan decides inside of the function. They take as long to find as ``plan.jit`` takes to
        prepare; ``constraints=False`` leaves them out.
        """
        from shardwright.python_source import to_python

        return to_python(self, constraints=constraints)

    def to_stablehlo(self, path: str | os.PathLike[str], *, form: str | None = None) -> None:
        """Write the program's StableHLO module with the plan in it, for any compiler that has Shardy.

        The module has the mesh, the shardings of arguments and results, and constraints inside where Shardy would
        decide otherwise by itself. A module that ``sw.read_stablehlo`` read is otherwise unchanged. ``form`` is
        ``"text"``, ``"bytecode"`` (MLIR's own) or ``"portable"`` (an artifact of StableHLO). By default it is the form
        of the file that the module was read from, and text for a JAX function.
        """
        content = annotated_stablehlo(self.sharded, self.donate, lowering_platform(self.device.platform), form)
        write_whole(path, content, "the module")

    def to_dict(self) -> dict[str, Any]:
        """Return figures, decisions, specs, collectives and the search's history as plain data that JSON can hold."""
        return plan_dict(self)

    def __getstate__(self) -> dict[str, Any]:
        """The plan without what is worked out from it, which ``pickle`` could not write or need not."""
        try:
            pickle.dumps(self.fn)
        except Exception as error:
            raise PlanError(
                f"pickle cannot write {function_name(self.fn)} ({error}), so it cannot write its plan: plan.save "
                "writes the plan without the function, and sw.load reads it for one."
            ) from error
        return {**{each.name: getattr(self, each.name) for each in fields(self)}, "given_costs": None}

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, _: Any) -> Plan:
        return self

    def __str__(self) -> str:
        return plain_text(plan_table(self))

    @property
    def _held_bytes(self) -> int:
        return self.costs.held_bytes(self.partitioned.state)

    @property
    def _keywords(self) -> tuple[str, ...]:
        call = positional_call(self.fn)
        return call.keywords if call is not None else ()

    @property
    def _axes(self) -> tuple[str, ...]:
        return self.partitioned.mesh.names

    def _sharding(self, value: int, path: str) -> Any:
        # A random key is one element to JAX and two or four words to the compiler; the words are never sharded.
        leaf = jax.tree.leaves(self.args)[self.argument_paths.index(path)]
        return self.partitioned.values[value][: len(getattr(leaf, "shape", ()))]


def make_plan(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    result: Any,
    places: Places,
    mesh: MeshShape,
    device: Device,
    decisions: Sequence[Decision | Whole],
    state: State,
    *,
    limit_bytes: int,
    donate: Sequence[int],
    options: Mapping[str, Any],
    costs: CostModel | None = None,
    search: Search | None = None,
    meshes: tuple[MeshChoice, ...] = (),
    decided: Decided | None = None,
) -> Plan:
    """Partition an analysed program in a state; ``decisions`` are the state in words."""
    if costs is not None and costs.classes.places is places:
        partitioned = costs.partitioned(state)
    else:
        partitioned = partition_program(places, mesh, state, DevicePrices.of(device, mesh))
    return Plan(
        fn,
        args,
        result,
        places.analysis,
        partitioned,
        tuple(decisions),
        device,
        limit_bytes,
        tuple(donate),
        dict(options),
        search,
        meshes=meshes,
        decided=decided,
        given_costs=costs,
    )
