"""Sums of clients' vectors of which the server sees nothing but the sum.

Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead" (CCS 2020, ePrint
2020/704, section 4), on top of Bonawitz et al., "Practical Secure Aggregation" (CCS 2017, ePrint
2017/281). Pure protocol: it knows no federation, no model and no network. Six stages, in each of
which clients may drop out:

1. *keys*: each client makes two key pairs for this one sum, and signs them;
2. *shares*: it sees everybody's keys, draws its neighbours by itself, and gives each a share of two
   secrets, sealed for that neighbour;
3. *boxes*: it opens the shares that were sealed for it, and compares who drew it with what the
   server says of all;
4. *input*: it sends its vector plus a mask of its own plus or minus one mask for each neighbour,
   and signs what these follow from; masks only cancel between clients with the same keys and basis;
5. *confirm*: it signs whose vectors the server claims to have, who drew whom, and that basis;
6. *unmask*: once shown that two thirds signed the same, and that all on the list signed what it was
   shown itself, it gives out shares: of the own masks of those whose vectors arrived, and of the
   mask keys of those whose did not, never both of one client.

**What is assumed.** Fewer than a third of the clients that the sum began with collude with the
server or with each other, see :mod:`.cohort`. With registered keys (`verify` of
:class:`SumClient`) the server may do anything: it learns one sum, of at least two thirds of
the clients, or nothing. Without them it must follow the protocol. No assumption makes the sum
itself harmless, and none says that it is right: a client may send whatever it likes.
"""

from orchestra_flwr.privacy.secure_sums.cohort import MAX_CLIENTS, MIN_COHORT
from orchestra_flwr.privacy.secure_sums.confirmations import Confirmations, SumRefusedError
from orchestra_flwr.privacy.secure_sums.sum_client import SumClient
from orchestra_flwr.privacy.secure_sums.sum_server import SumFailedError, SumServer
from orchestra_flwr.privacy.secure_sums.transcript import Occasion

__all__ = [
    "MAX_CLIENTS",
    "MIN_COHORT",
    "Confirmations",
    "Occasion",
    "SumClient",
    "SumFailedError",
    "SumRefusedError",
    "SumServer",
]
