"""Orchestra on Flower's public API: messages, clients, the server's rounds, engines.

Of this package, `flower`, `federation` and `deployment` alone import flwr.
"""

import os

# Before flwr is imported, which reads these once: nothing is reported unless it is switched on.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# What nobody refers to any more leaves Ray's store after so long, and not after its second: replies
# of a fast round would pile up meanwhile.
os.environ.setdefault("RAY_free_objects_period_milliseconds", "50")
# Ray shall not hide devices from workers that ask for none of its GPUs, nor warn about it.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
