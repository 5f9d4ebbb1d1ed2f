"""How XLA moves values between the memories of host and device.

Every move is started ahead of where it has to be done, at most five at a time, and other work runs in between.
"""

from __future__ import annotations

from collections.abc import Callable

from shardwright.compiler.behaviours import CPU, TPU, Behaviour, everywhere, structural

_SEEN = (
    "libtpu of jax 0.10.2, v5e, in the order of the final text, which is the schedule (docs/benchmarks/offload.md). "
)
_DECODER = "Decoder of 8 scanned layers: "

HOST_STACKS = structural(
    "an offloaded stack is written and read on the host",
    "A stack of offloaded residuals is allocated on the host and written and read there slice by slice: no copy of "
    "it is ever on the device.",
    evidence=_SEEN + _DECODER + "host_temp_size_in_bytes is exactly the stack, bf16[8,16,2048,512]{..S(5)}.",
    tests=(
        "test_offloading.py::test_an_offloaded_stack_takes_bytes_of_the_host_alone",
        "test_offloading.py::test_the_tpu_compiler_keeps_it_on_the_host",
    ),
    where=("ir.memory.find_on_host", "price.buffers.find_buffers"),
)

PIPELINED = everywhere(
    "in a loop a move is under way while the next turn runs",
    "In a loop's body a turn writes what the turn before it made and reads what the next one needs, for which the loop "
    "is peeled, and one more slice is on the device. The effect is the role of regions in which it is so.",
    effect="body",
    evidence=_SEEN
    + _DECODER
    + "dynamic-update-slice-start and -done both in the forward body with 1.9 ms of kernels in "
    "between, dynamic-slice-start and -done in the backward body, loops named loop_peel.",
    tests=("test_offloading.py::test_an_offloaded_stack_takes_bytes_of_the_host_alone",),
    where=("price.buffers.find_buffers",),
)

MOVED_EARLY = structural(
    "what is on the host from the start is moved before the last loop ahead of its use",
    "Outside of loops such a move waits for nothing, and what it brings is on the device while that loop runs. An "
    "optimization_barrier does not delay it, as it is dropped before moves are ordered.",
    ops=("custom_call", "optimization_barrier"),
    evidence=_SEEN
    + _DECODER
    + "of Adam's moments as arguments, all copy-starts to the device stand before the backward loop, those to the "
    "host after it. A stack of 16 matrices: the copy-start of the state stands before both loops, with a barrier and "
    "without one; updated in a fori_loop in place, 1.2 GiB of temporaries in place of 2.5 and none on the host.",
    tests=("test_offloading.py::test_state_is_moved_before_the_last_loop_unless_a_loop_moves_it",),
    where=("price.kernel_order.moved_early",),
)

HOST_COUNTED = Behaviour(
    name="the peak that the compiler tells has arguments and results on the host in it",
    what="Its own figure of the most memory at a time, peak_memory_in_bytes, counts arguments and results that lie on "
    "the host among a device's.",
    effect=True,
    otherwise=False,
    platforms=TPU,
    evidence=_SEEN + "Where 0.5 GiB of state are not donated, peak_memory_in_bytes is 3.016 GiB, while all arguments, "
    "results and temporaries of the device are 2.017: 1.0 is state on the host; donated, it is 0.5 GiB less.",
    tests=("test_offloading.py::test_what_lies_on_the_host_is_no_part_of_a_devices_peak",),
    where=("verify.figures.memory_figures",),
)


def exposed_seconds(
    to_host_seconds: float, to_device_seconds: float, compute_seconds: float, in_loop: bool, /
) -> float:
    """What moves in one place, a loop's body or the program around loops, add to the step.

    The link carries both ways at once, and what the place computes meanwhile hides them. Around loops, what leaves has
    to arrive first: an optimizer's state goes one way and then the other.
    """
    moves = max(to_host_seconds, to_device_seconds) if in_loop else to_host_seconds + to_device_seconds
    return max(moves - compute_seconds, 0.0)


_EXPOSED: Callable[[float, float, float, bool], float] = exposed_seconds
HIDDEN_MOVES = everywhere(
    "moves are hidden behind the compute beside them",
    "A move is started ahead of where its result is needed, so that the step waits only for what a loop's body, or the "
    "program around loops, has no work beside.",
    effect=_EXPOSED,
    evidence=_SEEN + _DECODER + "1.9 ms of kernels stand between the start and the done of a move in the forward body.",
    tests=("test_offloading.py::test_moves_are_hidden_behind_the_compute_beside_them",),
    where=("price.transfers.all_and_exposed",),
)

ONE_MEMORY = Behaviour(
    name="host and device are one memory",
    what="JAX's kinds of memory are kept, but nothing is moved.",
    effect=True,
    otherwise=False,
    platforms=CPU,
    evidence="jax 0.10.2 and 0.12 on CPU devices: pinned_host and device are the same memory there.",
    tests=("test_offloading.py::test_a_plan_runs_and_leaves_state_where_it_was",),
    where=("ir.build.read_module",),
)

RECORDS = (HOST_STACKS, PIPELINED, MOVED_EARLY, HOST_COUNTED, HIDDEN_MOVES, ONE_MEMORY)
