"""``python -m orchestra_flwr.deployment.keys``: as ``orchestra-keys``."""

import sys

from orchestra_flwr.deployment.keys.command_line import main

sys.exit(main())
