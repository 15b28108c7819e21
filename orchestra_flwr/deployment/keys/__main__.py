"""``python -m orchestra_flwr.deployment.keys``: makes and manages certificates and keys."""

import sys

from orchestra_flwr.commands.endings import stop_on_sigterm
from orchestra_flwr.console.output_streams import ignore_closed_streams
from orchestra_flwr.deployment.keys.command_line import main

ignore_closed_streams()
stop_on_sigterm()
sys.exit(main())
