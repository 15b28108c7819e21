"""``python -m orchestra_flwr.deployment.keys``: makes and manages certificates and keys."""

import sys

from orchestra_flwr.deployment.keys.command_line import main
from orchestra_flwr.output_streams import outlast_output

outlast_output()
sys.exit(main())
