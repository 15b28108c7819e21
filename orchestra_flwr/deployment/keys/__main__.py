"""``python -m orchestra_flwr.deployment.keys``: makes and manages certificates and keys."""

import sys

from orchestra_flwr.deployment.keys.command_line import main

sys.exit(main())
