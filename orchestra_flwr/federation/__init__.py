"""Orchestra on Flower's public API: messages, clients, the server's rounds, engines.

In this package only `flower`, `federation` and `deployment` import flwr.
"""

import os

from orchestra_flwr.files import at_home

# Set before flwr is imported, which reads them once. Telemetry stays off unless switched on.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
if not at_home("~").is_absolute():  # a user without a home: there flwr cannot even be imported
    os.environ.setdefault("FLWR_HOME", ".flwr")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray frees unreferenced objects after so long. Its default is a second, in which the replies of a
# fast round would pile up.
os.environ.setdefault("RAY_free_objects_period_milliseconds", "50")
# Keeps Ray from hiding devices from workers that request no GPU, and from warning about it.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
