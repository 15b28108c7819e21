"""The methods of Flower's Fleet API, and which of them the gate treats alike."""

SMALL = 64 * 1024
# Every method of the Fleet API, with the most bytes of a request. A reply's object is one chunk
# of an array, 5 MiB unless FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE says otherwise.
METHODS = {
    "/v1/fleet/register-node": SMALL,
    "/v1/fleet/activate-node": SMALL,
    "/v1/fleet/deactivate-node": SMALL,
    "/v1/fleet/unregister-node": SMALL,
    "/v1/fleet/send-node-heartbeat": SMALL,
    "/v1/fleet/pull-messages": SMALL,
    "/v1/fleet/push-messages": 4 * 1024**2,
    "/v1/fleet/get-run": SMALL,
    "/v1/fleet/get-fab": SMALL,
    "/v1/fleet/push-object": 16 * 1024**2,
    "/v1/fleet/pull-object": SMALL,
    "/v1/fleet/confirm-message-received": SMALL,
}
REGISTRATION_PATHS = ("/v1/fleet/register-node", "/v1/fleet/activate-node")
HEARTBEAT = "/v1/fleet/send-node-heartbeat"
DEACTIVATE = "/v1/fleet/deactivate-node"
# A client that sends any other request has received its last message.
POLLING_PATHS = ("/v1/fleet/pull-messages", HEARTBEAT)
# A body or a response of megabytes: they last as long as the client's line makes them.
OBJECT_PATHS = ("/v1/fleet/push-object", "/v1/fleet/pull-object")
