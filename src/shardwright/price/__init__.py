"""What a state of a program costs on a mesh of devices: how every value lies, how every op runs, seconds and bytes.

The problem
===========

Given are a program of values ``v`` and ops ``o``, which run ``n_o`` times and which the compiler fuses into kernels
``k`` (``kernels.find_kernels``); a mesh with axes ``a``; a device with memory of ``M`` bytes, and ``H`` on its host.

Variables. A state ``s`` is one list of entries for each axis: ``s_a = (e_1, e_2, …)``. An entry names a group of
dimensions and the sides that it takes in its conflicts, or keeps some arguments whole (``space/state.py``). All else
follows from it:

- ``X_v(s)``, the sharding of a value: each axis, major first, goes to the first entry of its list that the value has
  and can be split by (``shardings.shard_value``).
- ``F_o(s)``, the ways to run an op: each axis splits one of the op's factors whose group is on its list, or none
  (``ways.Choices``, ``ways.combinations``). In a way ``y`` the op reads and writes its tensors as ``y_v``.
- ``Y_o(s)``, the way that is taken (``assign.Assigner.assign``)::

      Y_o = argmin  work(o, y) + Σ_operands move(X_v → y_v) + Σ_results move(y_v → X_v)        over y in F_o(s)

  where ``work`` is ``prices.DevicePrices.work_seconds``, and ``move`` adds up ``prices.DevicePrices.move_seconds`` of
  the collectives that bring a tensor, and partial sums, from one sharding to another (``collectives.reshard``,
  ``collectives.reduce_partial``).

Minimise the seconds of a step (``cost_model.Cost.step_seconds``)::

    step    = compute + exposed
    exposed = comm − hidden + Σ_places max(0, moves to the host and back − compute beside them)
    compute = Σ_k n_k · kernel(k)  +  Σ copies to another layout, or into place behind moves
    comm    = Σ_o n_o · Σ_results move(Y_o → X_v)  +  Σ_uses n · move(X_v → w)  +  Σ_borders n · move(X_v → X_u)
    hidden  = Σ_slots n · min(gathers for it, slots beside them)  +  Σ_loops n · min(sums scattered in it, its product)

- ``hidden`` is what the compiler moves while the device computes: a *slot* is a product and what follows it, and what
  stands beside its gathers is told by ``overlap.Overlap``; products that are loops by
  ``class_prices.OpShare``.
- Moves to the host and back are ``transfers.all_and_exposed``; a place is a loop's body, or the program around loops.
- ``kernel(k)``: the launch, and the longest of matrix unit, vector unit and memory (``compute.kernel_seconds``), of
  the sum of its ops' work in ``Y_o``, each stored value read once (``class_prices.KernelWorks``).
- Uses: a value is brought to each sharding ``w`` that some of its ops want, once for all of them in one loop body
  (``units.Units.wanted``). Sums that are added up are reduced once (``added.reduced_together``). Borders: a value
  ``v`` is ``u`` on the other side of a loop, a branch or a manual region. A collective of the program's own counts with
  the moves of its op's results.

Subject to memory, at every point ``t`` of the program (``program_classes.find_points``)::

    peak = max_t  Σ_buffers alive at t  bytes(X_b)  +  Σ_copies for uses, alive at t  bytes(w)  +  unmoved(t)  ≤  M
    host = max_t  Σ_buffers on the host at t  bytes(X_b)                                                    ≤  H

where buffers and how long they live are of ``buffers.find_buffers``, ``bytes`` are those of one device's part with its
padding (``layout.stored_bytes``), and ``unmoved`` are results that are not yet reduced or resharded. What is over the
limits is ``cost_model.Cost.over_bytes``; a search is told both and decides what to make of them.

How it is computed
==================

Every sum above runs over *classes*: copies of a layer are counted, not repeated (``program_classes.Classes``). What a
class contributes depends only on the entries that it sees, so classes that see the same are a *family* that remembers
its sum (``units.Family``), and a state is priced by the families whose entries changed
(``cost_model.CostModel.evaluate``).

To read: ``shardings`` → ``collectives`` → ``ways`` → ``assign`` → ``added`` → ``partitioned`` say what a state means;
``shortcuts``, ``kernels``, ``buffers``, ``layout``, ``gathered``, ``compute``, ``transfers``, ``overlap`` what the
compiler makes of a program and what that takes; ``program_classes`` → ``class_prices`` → ``units`` → ``cost_model`` add
it up; ``breakdown`` takes an ``estimate`` apart again for people, ``timeline`` its memory.
"""

from shardwright.price.breakdown import make_estimate
from shardwright.price.cost_model import Cost, CostModel
from shardwright.price.estimate import Estimate
from shardwright.price.partitioned import Collective, Partitioned, partition_program
from shardwright.price.prices import DevicePrices
from shardwright.price.shardings import Places
from shardwright.price.ways import Prices

__all__ = [
    "Collective",
    "Cost",
    "CostModel",
    "DevicePrices",
    "Estimate",
    "Partitioned",
    "Places",
    "Prices",
    "make_estimate",
    "partition_program",
]
