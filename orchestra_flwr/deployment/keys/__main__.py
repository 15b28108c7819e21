"""``python -m orchestra_flwr.deployment.keys``: makes and manages certificates and keys."""

import sys

from orchestra_flwr.console.output_streams import ignore_closed_streams
from orchestra_flwr.deployment.keys.command_line import main

ignore_closed_streams()
sys.exit(main())
