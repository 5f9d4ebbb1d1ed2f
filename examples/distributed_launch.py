"""Several processes: each plans by itself, to the same result, and holds its part of the arguments.

Run plainly, it starts two processes of itself with four CPU devices each. On a cluster, every process runs what is in
``train`` after ``jax.distributed.initialize()``.

python examples/distributed_launch.py
"""

import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import shardwright as sw

PROCESSES, DEVICES_EACH = 2, 4
WIDTH, HIDDEN, BATCH = 256, 1024, 2048


def train_step(params, batch):
    def loss_fn(params):
        h = jax.nn.relu(batch["x"] @ params["up"])
        return jnp.mean((h @ params["down"] - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - g, params, grads), loss


def train():
    random = np.random.default_rng(0)  # the same parameters in every process
    shapes = {"up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    params = {name: (random.normal(size=s) * s[0] ** -0.5).astype(np.float32) for name, s in shapes.items()}
    x = random.normal(size=(BATCH, WIDTH)).astype(np.float32)
    batch = {"x": x, "y": np.sin(x)}
    expected_loss = train_alone(params, batch)

    # Shardwright, in place of jax.jit(train_step). The same seed gives the same plan in every process.
    plan = sw.partition(train_step, params, batch, mesh={"data": 4, "model": 2}, device="tpu-v5e", donate=0)
    mesh = plan.make_mesh()  # over the devices of all processes
    step = plan.jit(mesh)

    # A process loads only what its own devices hold, whatever the plan says that is.
    params = plan.place(params, mesh)
    shardings = jax.tree.map(lambda spec: jax.NamedSharding(mesh, spec), plan.in_specs[1])
    batch = jax.tree.map(lambda a, s: jax.make_array_from_callback(a.shape, s, a.__getitem__), batch, shardings)
    for _ in range(3):
        params, loss = step(params, batch)

    if jax.process_index() == 0:
        print(plan)
        print(f"loss {loss:.6f} in {jax.process_count()} processes; with plain jax.jit {expected_loss:.6f}")
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)


def train_alone(params, batch):
    for _ in range(3):
        params, loss = jax.jit(train_step)(params, batch)
    return float(loss)


def launch():
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    children = [subprocess.Popen([sys.executable, __file__, str(port), str(i)]) for i in range(PROCESSES)]
    try:
        return max(child.wait() for child in children)
    finally:
        for child in children:
            child.kill()


if len(sys.argv) == 1:
    sys.exit(launch())

jax.config.update("jax_num_cpu_devices", DEVICES_EACH)  # stands in for a host with four accelerators
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[1]}", num_processes=PROCESSES, process_id=int(sys.argv[2]))
train()
