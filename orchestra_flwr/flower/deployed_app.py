"""The app that Flower knows a deployment by. It holds no code: both sides run their own.

Checked against Flower 1.41 and 1.42: the least that `flwr run` takes for an app.
"""

PUBLISHER, NAME = "orchestra-flwr", "orchestra-deployment"
APP = f"{PUBLISHER}/{NAME}"  # as a run names it

# Flower wants components; nobody loads them.
PROJECT = f"""
[project]
name = "{NAME}"
version = "1.0.0"
description = "Orchestra on real clients"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = []

[tool.flwr.app]
publisher = "{PUBLISHER}"
flwr-version-target = "1.41.0"

[tool.flwr.app.components]
serverapp = "orchestra_flwr.federation.server_app:app"
clientapp = "orchestra_flwr.federation.client.client_app:app"
"""
