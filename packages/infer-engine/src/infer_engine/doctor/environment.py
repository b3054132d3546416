"""The part `environment`: versions, driver and wheel, compilers, caches, processors and memory."""

import os
import time

from infer_engine.doctor.gpu_facts import read_driver
from infer_engine.doctor.host import (
    describe_compilers,
    describe_memory,
    describe_processors,
    describe_system,
    describe_variables,
    versions,
)
from infer_engine.doctor.reporter import Reporter
from infer_engine.gpu_visibility import VISIBLE_DEVICES
from infer_engine.host_limits import read_host_limits


def examine_environment(reporter: Reporter) -> None:
    """Report the machine; facts that need torch come last, because its import may fail."""
    limits = read_host_limits()
    reporter.details(
        versions=versions(),
        system=describe_system(),
        processors=describe_processors(limits=limits),
        memory=describe_memory(limits=limits),
        compilers=describe_compilers(),
        variables=describe_variables(),
    )
    driver = read_driver(os.environ.get(VISIBLE_DEVICES))
    reporter.details(driver=driver.as_json())
    began = time.monotonic()
    import torch  # noqa: PLC0415 - facts that do not need it have been reported

    reporter.ok("torch", f"{torch.__version__} imported in {time.monotonic() - began:.1f} s")
    from infer_engine.doctor.devices import examine_devices  # noqa: PLC0415 - imports torch

    examine_devices(reporter, driver, limits)
