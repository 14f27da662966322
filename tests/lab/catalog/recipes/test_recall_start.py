"""Where training on recall starts: no block writes more than the residual stream holds."""

from dataclasses import replace

import pytest
import torch

from diffattn.lab.catalog.models import TYPES
from diffattn.lab.catalog.recipes.recall import RECALL
from diffattn.lab.data.synthetic import generate
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.residual_stream import residual_writes


def largest_write(run, attention_type, **changes):
    config = replace(run.model.twin(attention_type).config, **changes)
    torch.manual_seed(0)
    model = DiffTransformerForCausalLM(config)
    rows = residual_writes(model, generate(run.task, 8, seed=1).input_ids)
    return max(
        max(row["attention"] / row["stream"], row["feed_forward"] / row["between"]) for row in rows
    )


@pytest.mark.parametrize("scale", RECALL)
@pytest.mark.parametrize("attention_type", [*TYPES, "none"])
def test_no_block_writes_more_than_the_stream_holds(attention_type, scale):
    for run in RECALL[scale]()["tasks"]:
        assert largest_write(run, attention_type) < 1


@pytest.mark.parametrize("attention_type", [*TYPES, "none"])
def test_as_the_first_version_started_every_type_did(attention_type):
    """V1 and Shared nine times as much: the test above can fail."""
    run = RECALL["study"]()["tasks"][0]
    plain = {"embedding_multiplier": 1.0, "depth_scaled_init": False}
    write = largest_write(run, attention_type, **plain)
    assert write > (9 if attention_type in ("diff", "shared_diff") else 1)
