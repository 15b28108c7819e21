"""The error that ends a federation."""


class FederationError(RuntimeError):
    """A federation that cannot go on; its text says why.

    Attributes:
        resume_round: the round after which the run can be resumed; None: the last one.
    """

    def __init__(self, text: str, resume_round: int | None = None) -> None:
        super().__init__(text)
        self.resume_round = resume_round
