"""FedBN: BatchNorm stays with the client.

Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization", ICLR 2021
(arXiv 2102.07623): clients whose images differ in looks share everything but their norms.
"""

from orchestra_flwr.merging.replace import Replace


class FedBN(Replace):
    """The parameters and statistics of every BatchNorm are local; all else is replaced.

    It is `model.batch_norm=local` under the paper's name: norms are found by their type, in
    encoders, targets, heads and terms. In its first round a client has the norms that every model
    of the run begins with; from then on they are its own.
    """

    local_norms = True
