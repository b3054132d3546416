"""Fields of a checkpoint's JSON files that nobody asked for, and the one list of those that say nothing of answers."""

import re
from collections.abc import Mapping
from typing import Any

from infer_models.config.generation_config import is_of_generation

_WITHOUT_EFFECT = re.compile(
    r"_.*|architectures|model_type|auto_map|finetuned|finetuning_task|license|name_or_path|num_labels|prefix"
    r"|problem_type|processor_class|task_specific_params|tokenizer_class|transformers.*|unsloth.*|.*_version"
    r"|id2label|label2id|is_llama_config"  # what the checkpoint is
    r"|initializer_.*|init_method|init_std|.*_init|.*_init_(?:range|scale|std)|.*_use_xavier_init|.*dropout.*|.*_pdrop"
    r"|.*(?:aux|z)_loss.*|.*jitter.*|freeze_.*|gradient_checkpointing|keys_to_ignore_at_inference|loss_.*|lora_.*"
    r"|pretraining_tp|tf_legacy_loss|train_.*|use_cce|mtp_.*"  # training, and layers that predict a token further
    r"|.*_chunk_size|attn_implementation|cache_.*|chunk_size_feed_forward|compile_config|experts_implementation"
    r"|fused_.*|output_.*|pruned_heads|return_dict.*|tie_encoder_decoder|torch_dtype|dtype|torchscript|use_bfloat16"
    r"|use_cache|use_flash_attn.*|use_mem_.*|use_return_dict"  # how it is computed, and what is returned
    r"|.*_token(?:_id|_ids|_index)?|add_.*_token|max_sequence_length|model_max_length|seq_length|.*tokens_per_image"
    r"|initial_context_length|original_max_position_embeddings|.*vision.*|.*image.*|.*audio.*|.*video.*"
    r"|(?:quantization|compression)_config|quantization"  # read by others, or of no text
    r"|attn_output_gate|block_dim|block_norm_eps|block_use_swiglu|conv_dim|conv_dim_out|experts_per_token|mamba_ssm_.*"
    r"|max_window_layers|mrope_.*|num_heads|theta|type|use_pos_enc"  # what is so in any case, and second names
    r"|add_prefix_space|backend|clean_up_tokenization_spaces|errors|from_slow|is_local|legacy|local_files_only"
    r"|model_input_names|name_or_path|pad_to_.*|padding.*|return_token_type_ids|sp_model_kwargs|special_tokens_map_file"
    r"|spaces_between_special_tokens|stride|tokenizer_file|trim_offsets|truncation.*|use_default_system_prompt"
    r"|use_fast|vocab_file|merges_file|chat_template|response_schema|fix_mistral_regex|add_special_tokens"
    r"|tokenizer_type|tool_parser_type|max_len|device|verbose|return_tensors|repo_type|vocab_size|is_decoder"
    # of tokenizers: what tokenizer.json has in its own words
)


def without_ineffective(unread: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return those of `unread` that may change answers: known to no list, and not switched off or 1."""
    return {
        name: value
        for name, value in unread.items()
        if (value is True or value not in (None, 0, 1, "", [], {}))
        and not is_of_generation(name.rpartition(".")[2])
        and not any(_WITHOUT_EFFECT.fullmatch(part) for part in (name, *name.split(".")))
    }
