"""One of two processes for a test: `watched_run.py ADDRESS PROCESS WORKDIR [STUCK_AT | heed]`."""

import sys
import time
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from cxrjax import cli
from cxrjax.errors import Preempted
from cxrjax.training.preemption import Preemption
from cxrjax.training.watchdog import Watchdog


def main() -> None:
    address, process, workdir = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    option = sys.argv[4] if len(sys.argv) > 4 else "0"
    stuck_at = 0 if option == "heed" else int(option)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, 2, process)
    if option == "heed":
        heed()
    options = {"suspicion": 1.0, "silence": 3.0, "interval": 0.25}
    with Watchdog(workdir, timeout=10.0, **options) as watchdog:
        try:
            for step in range(1, 100_000):
                watchdog.on_phase(step, "reading data")
                while step == stuck_at and process == 1:
                    time.sleep(0.1)
                watchdog.on_phase(step, "waiting for the step")
                multihost_utils.process_allgather(np.int32(step))
                if step == 20:
                    print("running", flush=True)
                time.sleep(0.02)
        except Exception as error:
            watchdog.blame(error)
            raise


def heed() -> None:
    """Steps until told to stop; of an evaluation's checks the last."""
    with Preemption() as preemption, preemption.deferred():
        for step in range(1, 100_000):
            multihost_utils.process_allgather(np.int32(step))
            if step == 20:
                print("running", flush=True)
            if preemption.reached(step):
                try:
                    preemption.check()
                except Preempted as told:
                    raise Preempted(f"{told} at step {step}") from None
            time.sleep(0.02)


cli.run(main)
