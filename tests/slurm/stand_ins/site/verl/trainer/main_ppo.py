"""Stands in for verl's driver: notes what it was given, logs a step, ends with the planted status."""

import os
import sys
import time

import proof_calls

NAMES = ("RAY_ADDRESS", "NCCL_NET", "RPEGC_RUN_DIR", "VERL_FILE_LOGGER_PATH", "CUDA_VISIBLE_DEVICES")

proof_calls.record(
    "driver",
    arguments=sys.argv[1:],
    folder=os.getcwd(),
    alive=proof_calls.alive(),
    environment={name: os.environ.get(name) for name in NAMES},
)
with open(os.environ["VERL_FILE_LOGGER_PATH"], "a", encoding="utf-8") as metrics:
    metrics.write('{"step": 1}\n')
print("the driver's own words")
time.sleep(float(proof_calls.planted("DRIVER_S", "0")))
sys.exit(int(proof_calls.planted("DRIVER_STATUS", "0")))
