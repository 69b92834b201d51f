import os
import signal
import subprocess
import sys
import sysconfig
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attnflow as af
from helpers.families import attention


@pytest.fixture(scope="module")
def A() -> np.ndarray:
    return attention(np.random.default_rng(0), 6, 48, 2.0)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_the_number_of_threads_does_not_change_a_bit(A: np.ndarray, threads: int) -> None:
    assert (af.flow(A, threads=threads) == af.flow(A, threads=1)).all()


def test_a_pair_does_not_depend_on_the_others(A: np.ndarray) -> None:
    everything = af.flow(A, layers=-1)[0]
    for query, token in ((0, 0), (5, 40), (47, 1)):
        assert af.flow(A, query, token, -1)[0, 0, 0] == everything[query, token]


def test_python_runs_while_the_solver_does(A: np.ndarray) -> None:
    big = np.concatenate([A] * 4)
    steps, finished = 0, threading.Event()

    def solve() -> None:
        af.flow(big, threads=1)
        finished.set()

    worker = threading.Thread(target=solve)
    worker.start()
    while not finished.is_set():
        steps += 1
        time.sleep(0.001)
    worker.join()
    assert steps > 20


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for a single child process")
@pytest.mark.parametrize("call", ["af.flow(A)", "af.max_flow(A, 3, 5)", "batch_flows([A] * 40, [300] * 40, range(40))"])
def test_ctrl_c_stops_the_solver(call: str) -> None:
    script = textwrap.dedent(f"""
        import signal
        import numpy as np, attnflow as af
        from attnflow.flow_batches import batch_flows
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits an ignored one
        rng = np.random.default_rng(0)
        A = rng.random((40, 300, 300)) * (rng.random((40, 300, 300)) < 0.5)
        print("ready", flush=True)
        try:
            while True:
                {call}
        except KeyboardInterrupt:
            print("stopped", flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(1.0)
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=30)
        assert out == "stopped\n"
    finally:
        child.kill()  # it would keep running after a failed assertion


def test_python_threads_solve_at_once_and_share_a_graph(A: np.ndarray) -> None:
    rows = [af.flow(A, query, layers=-1, threads=1) for query in range(16)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda query: af.flow(A, query, layers=-1, threads=2), list(range(16)) * 3))
    assert all((result == row).all() for result, row in zip(results, rows * 3, strict=True))


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="needs a free-threaded Python (3.14t)")
def test_the_core_leaves_the_global_lock_off(A: np.ndarray) -> None:
    """An extension that does not declare that it works without the lock would switch it on again."""
    af.flow(A, 0, layers=-1)
    assert not sys._is_gil_enabled()  # type: ignore[attr-defined]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on the memory of a process")
def test_one_wide_level_does_not_take_memory_by_its_square() -> None:
    script = textwrap.dedent("""
        import resource
        import numpy as np, attnflow as af
        rng = np.random.default_rng(0)
        layers = [rng.random(shape) * (rng.random(shape) < 0.5) for shape in ((3, 100_000), (4, 3), (5, 4), (3, 5))]
        resource.setrlimit(resource.RLIMIT_AS, (2 * 2**30, 2 * 2**30))
        print(af.flow(layers, 0, [0, 99_999], -1, threads=1).shape)
    """)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert run.stdout == "(1, 1, 2)\n", run.stderr


def test_every_instruction_set_gives_the_same_bits() -> None:
    script = textwrap.dedent("""
        import numpy as np, attnflow as af
        from attnflow._core import native
        rng = np.random.default_rng(0)
        W = rng.dirichlet(np.full(70, 0.3), size=(6, 1, 70))
        graphs = [(af.attention_graph(W), range(0, 70, 9)), (np.tril(W[:, 0]), [5, 69]), (W[:, 0], [5, 69])]
        flows = [af.flow(A, queries) for A, queries in graphs]
        print(native().instruction_set(), *(x.tobytes().hex() for x in flows))
    """)
    results = {}
    for name in ("portable", "avx2", "avx512"):
        environment = {**os.environ, "ATTNFLOW_KERNELS": name}
        run = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment
        )
        used, *values = run.stdout.split()
        results[used] = values
    if list(results) == ["portable"]:
        pytest.skip("this machine has neither AVX2 nor AVX-512")
    assert all(values == results["portable"] for values in results.values())
