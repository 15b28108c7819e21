"""The server's evaluation of the encoders on its own labelled images."""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from orchestra_flwr.config import Config, ConfigError
from orchestra_flwr.data import Dataset, beyond_limit, limited_dataset
from orchestra_flwr.evaluation import evaluate, fewer_voters, label_free_scores
from orchestra_flwr.evaluation.scores import PRECISION_ALONE, Labelled
from orchestra_flwr.federation.errors import FederationError
from orchestra_flwr.methods import Method, classification_head_of, labels_for, ordered_backbones
from orchestra_flwr.models import (
    Backbone,
    BatchNormPolicy,
    Encoder,
    device_of,
    recalibrated,
    tensors_sha256,
)
from orchestra_flwr.models.batch_norm import INITIAL, RECALIBRATED, has_statistics
from orchestra_flwr.seeding import torch_generator
from orchestra_flwr.training import resolve_device, torch_threads

log = logging.getLogger(__name__)

Scores = dict[str, dict[str, Any]]  # backbone -> score -> value

# Names of BatchNorm statistics, for the better scores before training and the others beside them.
LOADED = "loaded"  # with the network's weights, such as pretrained ones
OF_STATISTICS = "_statistics"  # suffix of the key of the others
MAX_REMEMBERED = 1024  # scores of backbones, so that a run of any length takes no more memory


@dataclass
class Evaluator:
    """Evaluates a method's backbones with frozen weights."""

    config: Config
    # Its training images are the bank of the kNN and train the linear probe; None: there is nothing
    # to evaluate with.
    dataset: Dataset | None
    # Called while features are made, with the backbone's name, how many images are done, and of how
    # many.
    on_progress: Callable[[str, int, int], None] = lambda name, done, total: None
    # Set when the run is to end; an evaluation ends with it, after a batch or a probe.
    is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._further: Labelled | None = None  # with labels that clients use, beyond the limit
        # Training images without a label (beside the class folders) can be no score's ground truth.
        if self.dataset is not None:
            labelled = replace(self.dataset, train=self.dataset.train.labelled)
            self.dataset = limited_dataset(labelled, self.config.evaluation.limit)
            further = beyond_limit(labelled, self.config.evaluation.limit)
            if further is not None and further.labels is not None:
                self._further = further.images, further.labels
        self._norms = BatchNormPolicy.of(self.config)
        self._remembered: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._one_at_a_time = threading.Lock()

    @property
    def why_not(self) -> str | None:
        """What is missing for an evaluation with labels; None if nothing is."""
        if self.dataset is None:
            return "the server has no images of its own (data.root)"
        if self.dataset.train.targets is None:
            return "the training images have no labels"
        if self.dataset.test is None or self.dataset.test.targets is None:
            return (
                "there are no labelled test images (data.test_share=0.2 holds back a fifth of the "
                "labelled ones)"
            )
        if self._norms.can_recalibrate and not self._has_statistics:
            return (
                "one training image with a label is too few for BatchNorm's statistics, which need "
                "two (model.norm=group needs none)"
            )
        return None

    @property
    def _unlabelled(self) -> Tensor | None:
        """(N, C, H, W) images for scores without labels: test images, or else the others."""
        if self.dataset is None or not self.config.evaluation.unsupervised:
            return None
        if self._norms.can_recalibrate and not self._has_statistics:
            return None  # as with labels
        return (self.dataset.test or self.dataset.train).images

    @property
    def fewer_voters(self) -> str | None:
        """A line for where kNN has no score, or fewer votes than asked for; None if neither."""
        if self.why_not is None and self.dataset and self.dataset.train.tags is not None:
            return PRECISION_ALONE
        k, bank = self.config.evaluation.knn_k, len(self.dataset.train) if self.dataset else 0
        return None if self.why_not else fewer_voters(k, bank)

    def scores(
        self, method: Method, *, untrained: bool = False, kept_only: bool = False
    ) -> Scores | None:
        """kNN, linear probe and feature spread of a method's backbones; None without labels.

        With `evaluation.unsupervised` there are scores without labels, whether or not there are
        others. Of a method that classifies, the first backbone also has the `accuracy` of its
        classifier. With `evaluation.recalibrated` the same scores with BatchNorm's statistics taken
        anew stand beside them, as "recalibrated". Equal weights are evaluated once: those of
        several backbones, as before training, and those that nobody changed since an earlier round.

        Args:
            untrained: whether nothing was trained yet. The scores are then the better ones, by the
                linear probe, of what the user has: the weights as loaded with their own BatchNorm
                statistics, or with statistics of the server's images. Initial statistics are of no
                images and would make any training look good, so they are never taken. `batch_norm`
                says whose statistics these are ("loaded", "recalibrated" ...); the others' scores
                stand beside them, as "initial_statistics", "loaded_statistics" or
                "recalibrated_statistics". Frozen ones are those of the pretraining, and stay.
            kept_only: whether only the backbone that is kept is evaluated.

        Raises:
            FederationError: features that are not finite, or the run is to end.
        """
        if self.why_not is not None and self._unlabelled is None:
            return None
        backbones = list(ordered_backbones(method, self.config.evaluation.backbone).items())
        scores: Scores = {}
        with self._one_at_a_time, torch_threads():
            for name, backbone in backbones[:1] if kept_only else backbones:
                head = classification_head_of(method, backbone)
                networks = [backbone] if head is None else [backbone, head]
                digest = " ".join(map(tensors_sha256, networks))
                digest += " untrained" * untrained
                self._check_not_stopped()
                if digest not in self._remembered:
                    self._remembered[digest] = self._scores(name, backbone, head, untrained)
                self._remembered.move_to_end(digest)
                scores[name] = self._remembered[digest]
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        return scores

    @contextmanager
    def beside(self, untrained: Method) -> Iterator[None]:
        """Evaluates a method that nobody has trained, in a thread beside the block.

        A call of :meth:`scores` for it waits for that, and tries again what has failed. The
        evaluation ends with the block; after that, this evaluator cannot be used.
        """
        with ThreadPoolExecutor(1, "evaluation") as thread:
            thread.submit(self.scores, untrained, untrained=True)
            try:
                yield
            finally:
                self.is_over.set()

    @property
    def batch_norm(self) -> str:
        """Which BatchNorm the scores and the saved encoder have, for the summary."""
        return self._norms.of_servers_model(has_images=self._has_statistics)

    @property
    def _has_statistics(self) -> bool:
        """Whether BatchNorm's statistics can be taken from the server's images; one has none."""
        return self.dataset is not None and len(self.dataset.train) > 1

    def encoder(self, backbone: Backbone, statistics: str | None = None) -> Encoder:
        """A frozen copy of a backbone, with statistics of the server's images where it has none.

        Args:
            statistics: `batch_norm` of its scores before training; None: it was trained.
        """
        if (statistics or self.batch_norm) == RECALIBRATED:
            return self._recalibrated(backbone)
        return Encoder.of(self.config, backbone)

    def _recalibrated(self, backbone: Backbone, name: str = "") -> Encoder:
        assert self.dataset is not None
        images, size = self.dataset.train.images, self.config.evaluation.batch_size
        normalise, device = self.config.data.normalise, self._device
        on_progress = partial(self._show, name)
        with torch_threads(self.config.training.threads):  # the same bits on every processor
            copied = recalibrated(backbone, images, size, normalise, on_progress, device=device)
        return Encoder.of(self.config, copied)

    def _check_not_stopped(self) -> None:
        if self.is_over.is_set():
            raise FederationError("the run was stopped")

    def _show(self, name: str, done: int, total: int) -> None:
        self._check_not_stopped()
        if name:  # otherwise nothing is evaluated
            self.on_progress(name, done, total)

    def _scores(
        self, name: str, backbone: Backbone, head: nn.Module | None, untrained: bool
    ) -> dict[str, Any]:
        own = partial(self._score, name, Encoder.of(self.config, backbone), head)
        both = self.config.evaluation.recalibrated
        if not self._norms.can_recalibrate:
            scores: dict[str, Any] = own()
            scores |= {RECALIBRATED: dict(scores)} if both else {}
            return scores | ({"batch_norm": self.batch_norm} if untrained else {})
        if not (untrained or both or self.batch_norm == RECALIBRATED):
            return own()
        recalibrated_scores = self._score(name, self._recalibrated(backbone, name), head)
        beside = {RECALIBRATED: recalibrated_scores} if both else {}
        if untrained:
            kind = LOADED if has_statistics(backbone) else INITIAL
            return _better(kind, own(), recalibrated_scores) | beside
        return {**(recalibrated_scores if self.batch_norm == RECALIBRATED else own()), **beside}

    def _score(self, name: str, encoder: Encoder, head: nn.Module | None) -> dict[str, float]:
        encoder = encoder.to(self._device)
        try:
            labelled = {} if self.why_not else self._labelled_scores(name, encoder, head)
            return {**self._label_free_scores(encoder), **labelled}
        except ValueError as error:
            raise FederationError(f"the encoder cannot be evaluated: {error}") from error

    @property
    def _device(self) -> torch.device:
        # The machine that joined a cluster need not have what the cluster's machines have.
        engine = self.config.engine
        remote = engine.plugin.is_remote(engine.settings)
        return resolve_device("auto" if remote else self.config.device)

    def _label_free_scores(self, encoder: Encoder) -> dict[str, float]:
        """The same images and augmentations in every round, so that rounds can be compared."""
        if self._unlabelled is None:
            return {}
        self._check_not_stopped()
        scores = label_free_scores(
            encoder.backbone,
            self._unlabelled,
            self.config.data.augmentation,
            torch_generator(self.config.seed, "label-free", device=device_of(encoder)),
            self.config.evaluation.batch_size,
            by=self.config.data.normalise,
        )
        return {**asdict(scores), "score": scores.score}

    def _labelled_scores(
        self, name: str, encoder: Encoder, head: nn.Module | None
    ) -> dict[str, float]:
        assert self.dataset is not None
        train, test = self.dataset.train, self.dataset.test
        assert test is not None and train.targets is not None and test.targets is not None
        targets = None if head is None else self._targets
        return evaluate(
            encoder,
            (train.images, train.targets),
            (test.images, test.targets),
            config=self.config.evaluation,
            augmentation=self.config.data.augmentation,
            seed=self.config.seed,
            shown=None if self.dataset.shown is None else (self.dataset.shown, self._further),
            classifier=None if head is None or targets is None else (head, targets),
            on_progress=partial(self._show, name),
        )

    @cached_property
    def _targets(self) -> Tensor | None:
        """(M,) classes of the test images as the method numbers them; None where it lacks one."""
        assert self.dataset is not None and self.dataset.test is not None
        try:
            return labels_for(self.config, self.dataset.test)
        except ConfigError as error:  # a real server's images may have other classes
            log.warning("the classifier itself is not evaluated on the test images: %s", error)
            return None


def _better(kind: str, own: dict[str, float], recalibrated: dict[str, float]) -> dict[str, Any]:
    """As :meth:`Evaluator.scores` before training; `kind` says which statistics `own` has.

    Without labels nothing says which are better; those of the pretraining are taken, if any are.
    """
    a, b = (scores.get("linear", scores.get("map", 0)) for scores in (own, recalibrated))
    if kind == LOADED and (a >= b or math.isnan(b)):  # a published probe may diverge
        return {**own, "batch_norm": kind, RECALIBRATED + OF_STATISTICS: recalibrated}
    return {**recalibrated, "batch_norm": RECALIBRATED, kind + OF_STATISTICS: own}
