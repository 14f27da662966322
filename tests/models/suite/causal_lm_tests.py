"""transformers' own tests of causal language models and of generation, on ours.

Run by test_transformers_repository.py, which lays it into the package ``tests.models`` of a copy of
transformers' repository; not collected.
"""

import os
import unittest
from types import SimpleNamespace

from our_classes import (
    ConfigOfProcess,
    DiffTransformerConfig,
    DiffTransformerForCausalLM,
    DiffTransformerForSequenceClassification,
    DiffTransformerModel,
)

from ... import test_fsdp_mixin
from ...causal_lm_tester import CausalLMModelTest, CausalLMModelTester

# Their list of the few models that are also trained sharded, on two processes.
test_fsdp_mixin.FSDP_DISTRIBUTED_TEST_MODEL_TYPES.add(DiffTransformerConfig.model_type)


class ModelTester(CausalLMModelTester):
    config_class = DiffTransformerConfig
    base_model_class = DiffTransformerModel
    causal_lm_class = DiffTransformerForCausalLM
    sequence_classification_class = DiffTransformerForSequenceClassification

    def get_config(self):
        return DiffTransformerConfig(
            attention_type=os.environ["ATTENTION_TYPE"], vocab_size=self.vocab_size,
            hidden_size=self.hidden_size, intermediate_size=self.intermediate_size,
            num_hidden_layers=self.num_hidden_layers, num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads, head_dim=8,
            max_position_embeddings=self.max_position_embeddings, pad_token_id=self.pad_token_id,
            bos_token_id=self.bos_token_id, eos_token_id=self.eos_token_id,
            tie_word_embeddings=False,
        )  # fmt: skip


class DiffTransformerTest(CausalLMModelTest, unittest.TestCase):
    model_tester_class = ModelTester
    _torch_compile_train_cls = DiffTransformerForCausalLM

    def _get_tiny_config(self):
        """As theirs, which sets counts of heads that ours derives."""
        config = self.model_tester.get_config()
        config.vocab_size, config.hidden_size, config.intermediate_size = 256, 64, 128
        config.num_heads = config.num_kv_heads = 4
        return ConfigOfProcess, config.to_diff_dict()

    def _check_attentions_for_generate(
        self, batch_size, attentions, prompt_length, output_length, config, decoder_past_key_values
    ):
        """One map is returned per output head; the configuration counts heads of the kernel."""
        returned = SimpleNamespace(num_attention_heads=config.num_heads)
        super()._check_attentions_for_generate(
            batch_size, attentions, prompt_length, output_length, returned, decoder_past_key_values
        )

    def _check_past_key_values_for_generate(self, batch_size, past_key_values, seq_length, config):
        """Our caches hold one head per pair, both maps' keys in it: fewer than a kernel needs."""
        assert len(past_key_values) == config.num_hidden_layers
        num_heads, width = config.cached_kv_shape
        for layer in past_key_values.layers:
            for kept in (layer.keys, layer.values):
                assert tuple(kept.shape) == (batch_size, num_heads, seq_length, width)
