"""Made-up documents: of every task, the same every time, and answered by some choice."""

import pytest

from diffattn.lab.evaluation.lm_tasks.documents import TASKS, generated_documents


@pytest.mark.parametrize("task", TASKS)
def test_documents_of_every_task(task):
    made = generated_documents(task, 40)
    assert (len(made.evaluated), len(made.training)) == (40, 16)
    assert made == generated_documents(task, 40)
    assert made != generated_documents(task, 40, seed=1)
    assert generated_documents(task, 4).evaluated == made.evaluated[:4]
    golds = {
        str(document.get("label", document.get("answerKey", document.get("answer"))))
        for document in made.evaluated
    }
    assert len(golds) > 1
