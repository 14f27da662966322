"""The tasks of the comparison of caches."""

import torch

from tools.caches.tasks import score


def test_scores_are_accuracy_and_nats_of_the_labels():
    labels = torch.tensor([[0, 1], [1, 1]])
    logits = torch.tensor([[[3.0, 1.0], [3.0, 1.0]], [[1.0, 3.0], [1.0, 3.0]]])
    assert score("recall", logits, labels) == 0.75
    right, wrong = torch.tensor([3.0, 1.0]).log_softmax(0).neg().tolist()
    assert abs(score("text", logits, labels) - (3 * right + wrong) / 4) < 1e-6
