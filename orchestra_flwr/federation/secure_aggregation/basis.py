"""A digest of what the clients of a sum train from, which must be the same for all.

Otherwise a server could send all but one of them a model or settings that give no update: the sum
would be the one client's update (Pasquini et al., "Eluding Secure Aggregation in Federated
Learning via Model Inconsistency", CCS 2022, arXiv 2111.07380).
"""

import hashlib
import json

from flwr.app import RecordDict

from orchestra_flwr.federation.messages.fields import ARRAYS, CONFIG, FROZEN

# Frozen weights enter by their digest; the number of clients (population) shapes one loss.
COMMON = ("config", "schema", "round", "train", "stage", "population", FROZEN)


def basis_of(content: RecordDict) -> str:
    """A digest, in hexadecimal, of what a training message says to all clients alike.

    Args:
        content: of the message, with its arrays.
    """
    task, arrays = content.config_records[CONFIG], content.array_records[ARRAYS]
    digest = hashlib.sha256(json.dumps({key: task.get(key) for key in COMMON}).encode())
    for name, array in sorted(arrays.items()):
        if name != FROZEN:
            digest.update(json.dumps([name, array.dtype, *array.shape]).encode())
            digest.update(hashlib.sha256(array.data).digest())
    return digest.hexdigest()
