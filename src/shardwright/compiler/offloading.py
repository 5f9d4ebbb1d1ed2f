"""How XLA moves values between the memories of host and device, and what of that is modelled."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Offloading:
    """What the compiler does with the moves of a program.

    Attributes:
        what: in words.
        pipelined_in: the role of regions in which a move is under way while the next turn runs, so that what is moved
            is on the device twice.
        counted_on_device: whether its own figure of the most memory at a time, ``peak_memory_in_bytes``, has arguments
            and results that lie on the host among a device's.
        evidence: where it was seen.

    """

    what: str
    pipelined_in: str
    counted_on_device: bool
    evidence: str


OFFLOADING = Offloading(
    what=(
        "A stack of offloaded residuals is allocated on the host and written and read there slice by slice: no copy of "
        "it is ever on the device. Every move is started ahead of where it has to be done, at most five at a time, and "
        "other work runs in between. In a loop's body a turn writes what the turn before it made and reads what the "
        "next one needs, for which the loop is peeled, and one more slice is on the device. Outside of loops, what is "
        "on the host from the start is moved to the device before the last loop ahead of its use, and is there while "
        "that runs; an optimization_barrier does not delay it, as it is dropped before moves are ordered."
    ),
    pipelined_in="body",
    counted_on_device=True,
    evidence=(
        "libtpu of jax 0.10.2, v5e, in the order of the final text, which is the schedule. Decoder of 8 scanned layers:"
        " dynamic-update-slice-start and -done on bf16[8,16,2048,512]{..S(5)} both in the forward body with 1.9 ms of "
        "kernels in between, dynamic-slice-start and -done in the backward body, loops named loop_peel, "
        "host_temp_size_in_bytes exactly the stack; of Adam's moments as arguments, all copy-starts to the device "
        "stand before the backward loop, those to the host after it. A stack of 16 matrices: the copy-start of the "
        "state stands before both loops, with a barrier and without one; updated in a fori_loop in place, 1.2 GiB of "
        "temporaries in place of 2.5 and none on the host. "
        "Where its 0.5 GiB of state are not donated, peak_memory_in_bytes is 3.016 GiB, while all arguments, results "
        "and temporaries of the device are 2.017: 1.0 is state on the host; donated, it is 0.5 GiB less. "
        "docs/benchmarks/offload.md; tests/test_offloading.py."
    ),
)


def exposed_seconds(
    to_host_seconds: float, to_device_seconds: float, compute_seconds: float, *, in_loop: bool
) -> float:
    """What moves in one place, a loop's body or the program around loops, add to the step.

    The link carries both ways at once, and what the place computes meanwhile hides them. Around loops, what leaves has
    to arrive first: an optimizer's state goes one way and then the other.
    """
    moves = max(to_host_seconds, to_device_seconds) if in_loop else to_host_seconds + to_device_seconds
    return max(moves - compute_seconds, 0.0)
