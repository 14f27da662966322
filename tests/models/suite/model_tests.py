"""transformers' own tests of a model, on ours: run by test_transformers_suite.py, not collected.

The module lies, while it runs, in the package ``tests`` of transformers' source distribution.
"""

import os
import unittest

import torch
from transformers.models.auto import modeling_auto

from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import (
    DiffTransformerForCausalLM,
    DiffTransformerForSequenceClassification,
    DiffTransformerModel,
)

from .test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask

# By these names the tests know what a model returns.
for mapping, model_class in (
    ("MODEL_MAPPING_NAMES", DiffTransformerModel),
    ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", DiffTransformerForCausalLM),
    ("MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", DiffTransformerForSequenceClassification),
):
    getattr(modeling_auto, mapping)[DiffTransformerConfig.model_type] = model_class.__name__


class ModelTester:
    """Makes the small model; the numbers that tests read are those of the configuration."""

    batch_size = 3
    seq_length = 7
    is_training = True
    vocab_size = 99
    hidden_size = 32
    num_hidden_layers = 2
    num_labels = 3

    def __init__(self, parent):
        self.parent = parent
        self.num_attention_heads = self.get_config().num_heads  # of the maps that are returned
        self.key_length = self.encoder_seq_length = self.seq_length

    def get_config(self):
        return DiffTransformerConfig(
            attention_type=os.environ["ATTENTION_TYPE"], vocab_size=self.vocab_size,
            hidden_size=self.hidden_size, intermediate_size=48,
            num_hidden_layers=self.num_hidden_layers, num_heads=4, num_kv_heads=2, head_dim=8,
            max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
            tie_word_embeddings=False,
        )  # fmt: skip

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        mask = random_attention_mask([self.batch_size, self.seq_length])
        return self.get_config(), {"input_ids": ids, "attention_mask": mask}


class DiffTransformerModelTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (
        DiffTransformerModel,
        DiffTransformerForCausalLM,
        DiffTransformerForSequenceClassification,
    )
    test_pruning = False
    model_tester_class = ModelTester

    def setUp(self):
        torch.manual_seed(0)
        self.model_tester = ModelTester(self)
