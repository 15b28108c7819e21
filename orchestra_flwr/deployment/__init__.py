"""Real federations: server and clients as processes on separate machines.

Six rooms, each of which may import those before it and none after it:

- ``keys``: certificates, key pairs and the list of registered clients, and the command for them;
- ``channel``: how the short-lived processes that Flower starts talk to the long-lived ones here;
- ``gate``: the HTTP server between the network and Flower's SuperLink;
- ``client_work``: what a client does with its server's messages, and what it refuses;
- ``watch``: what a server and a client show of themselves, and the audit log;
- ``processes``: what runs at a server and at a client, and the programs of Flower that they start.

``server_config``, ``client_config``, ``addresses`` and ``run_queue`` stand between ``keys`` and
``processes``.
"""
