"""The table of fields that clients of other servers send, with the values at which they change nothing here.

Three kinds: what never changes an answer is taken with any value; what would change one is taken at the values that
switch it off, and refused by name at others, with what to send instead; another name of a field means that field. A
null is always taken. What this server does is no row of the table but a field of a body, which takes the place of a row
of the same name; what other servers call a field of `SamplingParams` stands in its declaration.

A body with these fields is a subclass, which `decode_fields` reads and `check_foreign` checks.
"""

from typing import Annotated, Any, TypeVar

import msgspec

from infer_engine.protocol import SamplingParams
from infer_engine.protocol.request_fields import with_fields
from infer_engine.protocol.sampling import SAMPLING_FIELDS
from infer_server.api.fields import check_restricted, described, restricted
from infer_server.api.validation import conflict, unsupported
from infer_server.http.bodies import decode_body, not_json
from infer_server.openapi import another_name, other_names

Ignored = Annotated[Any, described("Accepted without effect.")]
OnlyNull = Annotated[Any, restricted("Only null.")]
OnlyOff = Annotated[Any, restricted("Only false.", allow=(False,), send="false")]
OnlyOn = Annotated[Any, restricted("Only true.", allow=(True,), send="true")]
OnlyZero = Annotated[Any, restricted("Only 0.", allow=(0,), send="0")]
OnlyOne = Annotated[Any, restricted("Only 1.", allow=(1,), send="1")]
OnlyEmpty = Annotated[Any, restricted("Only an empty value.", allow=("", [], {}))]
PenaltyWindow = Annotated[Any, described("Accepted without effect where no penalty is set; else only -1: all tokens.")]

_SAMPLERS = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
_OLDER_SAMPLERS = ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _elsewhere(send: str) -> msgspec.Meta:
    return restricted("Only null.", allow=("", [], {}), send=send)


def _each(kind: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), kind)


_ROWS: dict[str, Any] = {
    # OpenAI and gateways
    **_each(
        Ignored,
        "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_options "
        "prompt_cache_retention prediction verbosity provider models route transforms usage session_id trace "
        "extra_headers headers extra_query drop_params num_retries timeout tags litellm_metadata "
        "litellm_call_id litellm_session_id litellm_trace_id cache_control",
    ),
    **_each(OnlyEmpty, "web_search_options plugins reasoning thinking"),
    **_each(OnlyNull, "audio moderation"),
    "modalities": Annotated[Any, restricted('Only ["text"].', allow=(["text"],), send='["text"]')],
    "enable_thinking": Annotated[Any, restricted("Only null.", send="a conversation to `/v1/chat/completions`")],
    # AI SDK's settings under its own names
    **_each(Ignored, "promptCacheKey safetyIdentifier serviceTier textVerbosity"),
    "reasoningEffort": Annotated[Any, another_name("reasoning_effort")],
    "parallelToolCalls": Annotated[Any, another_name("parallel_tool_calls")],
    # Providers: Mistral, MiniMax, Qwen, GLM, Baseten
    **_each(OnlyOff, "safe_prompt enable_search"),
    **_each(Ignored, "vl_high_resolution_images incremental_output user_id tool_stream"),
    "search_options": OnlyEmpty,
    "reasoning_split": OnlyOn,
    "prompt_mode": Annotated[Any, restricted("Only `reasoning`.", allow=("reasoning",), send="`reasoning_effort`")],
    "chat_template_args": Annotated[Any, another_name("chat_template_kwargs")],
    # Chat programs and editors: Open WebUI, Copilot
    **_each(Ignored, "chat_id message_id thread_id response_language snippy intent"),
    # vLLM
    **_each(OnlyOne, "best_of length_penalty"),
    **_each(
        OnlyOff,
        "use_beam_search early_stopping echo add_special_tokens continue_final_message "
        "return_tokens_as_token_ids return_token_ids",
    ),
    **_each(
        Ignored,
        "spaces_between_special_tokens truncation_side guided_decoding_backend request_id data_parallel_rank",
    ),
    **_each(OnlyOn, "detokenize add_generation_prompt include_reasoning"),
    **_each(
        OnlyEmpty,
        "suffix documents mm_processor_kwargs media_io_kwargs logits_processors kv_transfer_params vllm_xargs "
        "prompt_embeds",
    ),
    **_each(OnlyNull, "truncate_prompt_tokens chat_template thinking_token_budget repetition_detection"),
    "prompt_logprobs": Annotated[Any, restricted("Only null.", send="`echo` and `logprobs` to `/v1/completions`")],
    "structural_tag": Annotated[Any, restricted("Only null.", send="`structured_outputs` with `structural_tag`")],
    # SGLang
    **_each(OnlyEmpty, "stop_regex custom_params"),
    **_each(OnlyNull, "lora_path session_params custom_logit_processor bootstrap_host bootstrap_port bootstrap_room"),
    **_each(OnlyOn, "separate_reasoning stream_reasoning"),
    **_each(
        OnlyOff,
        "return_hidden_states return_routed_experts return_cached_tokens_details return_prompt_token_ids",
    ),
    "rid": Ignored,
    "regex": Annotated[Any, another_name("guided_regex")],
    "ebnf": Annotated[Any, another_name("guided_grammar")],
    "input_ids": Annotated[Any, restricted("Only null.", send="`prompt` with the ids to `/v1/completions`")],
    "extra_key": Annotated[Any, another_name("cache_salt")],
    # llama.cpp
    **_each(
        Ignored,
        "cache_prompt id_slot slot_id n_discard xtc_threshold dry_base dry_allowed_length dry_penalty_last_n "
        "dry_sequence_breakers mirostat_tau mirostat_eta dynatemp_exponent penalize_nl timings_per_token "
        "return_progress preserved_tokens backend_sampling speculative.n_max speculative.n_min "
        "speculative.p_min",
    ),
    **_each(OnlyZero, "n_keep n_indent top_a xtc_probability dry_multiplier mirostat mirostat_mode dynatemp_range"),
    **_each(OnlyOne, "typical_p typ_p typical tfs_z tfs"),
    **_each(PenaltyWindow, "repeat_last_n penalty_last_n"),
    **_each(OnlyOff, "post_sampling_probs return_tokens reasoning_in_content thinking_forced_open grammar_lazy"),
    **_each(OnlyEmpty, "response_fields lora image_data multimodal_data grammar_triggers"),
    "parse_tool_calls": OnlyOn,
    "samplers": Annotated[
        Any,
        restricted(
            "Only llama.cpp's default.", allow=([], "", "edskypmxt", "edkypmxt", "dkypmxt", _SAMPLERS, _OLDER_SAMPLERS)
        ),
    ],
    "min_keep": Annotated[Any, restricted("Only 0 or 1.", allow=(0, 1), send="0")],
    "t_max_prompt_ms": Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="-1")],
    "t_max_predict_ms": Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="-1")],
    "top_n_sigma": Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="-1")],
    "nsigma": Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="0")],
    "reasoning_format": Annotated[
        Any, restricted("Only `auto`, `deepseek` or `parsed`.", allow=("auto", "deepseek", "parsed"), send="`auto`")
    ],
    "reasoning_budget": Annotated[Any, restricted("Only -1.", allow=(-1,), send="-1")],
    # Ollama, text-generation-webui, KoboldCpp
    **_each(OnlyOff, "raw dynamic_temperature temperature_last auto_max_new_tokens"),
    **_each(
        Ignored,
        "keep_alive smoothing_curve dynatemp_low dynatemp_high negative_prompt truncation_length "
        "prompt_lookup_num_tokens",
    ),
    **_each(
        OnlyZero,
        "smoothing_factor epsilon_cutoff eta_cutoff penalty_alpha no_repeat_ngram_size max_tokens_second",
    ),
    **_each(OnlyOne, "guidance_scale encoder_repetition_penalty"),
    **_each(PenaltyWindow, "repetition_penalty_range rep_pen_range"),
    **_each(OnlyEmpty, "banned_tokens sampler_priority"),
    "add_bos_token": OnlyOn,
    "options": Annotated[Any, _elsewhere("its fields beside the others, under OpenAI's names")],
    "num_ctx": Annotated[Any, restricted("Only null.", send="nothing: the server's `--max-seq-len` decides")],
    "format": Annotated[Any, _elsewhere("`response_format`")],
    "think": Annotated[Any, restricted("Only null.", send="`reasoning_effort`")],
    "do_sample": Annotated[Any, restricted("Only true.", allow=(True,), send="`temperature` 0")],
    "ban_eos_token": Annotated[Any, restricted("Only false.", allow=(False,), send="`ignore_eos` true")],
    "custom_token_bans": Annotated[Any, restricted('Only "".', allow=("", []), send="`logit_bias`")],
    "grammar_string": Annotated[Any, another_name("grammar")],
    # TGI
    **_each(OnlyOff, "details decoder_input_details return_full_text watermark"),
    **_each(OnlyNull, "truncate adapter_id"),
    **_each(OnlyEmpty, "tool_prompt guideline"),
    "top_n_tokens": OnlyZero,
}
"""The fields with what is taken of them, but for those that follow from declarations of `SamplingParams`."""


@with_fields(
    _ROWS
    | {alias: Annotated[Any, another_name(name)] for name, field in SAMPLING_FIELDS.items() for alias in field.aliases}
    | {
        other: Annotated[Any, restricted(f"Only {_json(values[-1])}.", allow=values, send=f"`{name}`")]
        for name, field in SAMPLING_FIELDS.items()
        for other, values in field.elsewhere.items()
    }
)
class ForeignFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of other servers and of gateways, at values that change nothing."""

    extra_body: Annotated[
        dict[str, Any] | None, described("Its fields count as if they were beside the others, in place of those there.")
    ] = None


F = TypeVar("F", bound=ForeignFields)

_WINDOWS = ("repeat_last_n", "penalty_last_n", "repetition_penalty_range", "rep_pen_range")
_PENALTIES = [name for name in SAMPLING_FIELDS if name.endswith("_penalty")]
_NO_PENALTIES = {name: getattr(SamplingParams(), name) for name in _PENALTIES}


def decode_fields(raw: bytes, struct: type[F]) -> F:
    """Return the body `raw` as a `struct` in which fields under other names, and of `extra_body`, are those they mean.

    Raises:
        ApiError: 400: it cannot be decoded; two names of a field have different values, or the struct lacks the field.
    """
    body = decode_body(raw, struct)
    if not body.extra_body and all(_is_nothing(getattr(body, name)) for name in other_names(struct)):
        return body
    try:
        fields = msgspec.json.decode(raw)  # also what no field takes, which the struct's decoder passes over
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(error, raw) from None
    extra = fields.pop("extra_body", None) or {}
    if extra.pop("extra_body", None):
        raise unsupported("extra_body.extra_body", {}, send="its fields in `extra_body`")
    fields |= extra
    for name, meant in other_names(struct).items():
        value = fields.pop(name, None)
        if _is_nothing(value):
            continue
        if meant not in struct.__struct_fields__:
            raise unsupported(name, value, send="null")
        given = fields.get(meant)
        if given is not None and (given != value or isinstance(given, bool) != isinstance(value, bool)):
            raise conflict(name, f"`{name}` is another name of `{meant}`, and both are given; send only one.")
        fields[meant] = value
    return decode_body(msgspec.json.encode(fields), struct)


def _is_nothing(value: object) -> bool:
    """Return whether a field under another name is left out, or empty, as clients send what they do not set."""
    return value is None or value in ("", [], {})


def check_foreign(body: ForeignFields) -> None:
    """Refuse a field at a value that would change the answer.

    Raises:
        ApiError: 400, `unsupported_value`.
    """
    check_restricted(body)
    if any(getattr(body, name, None) not in (None, neutral) for name, neutral in _NO_PENALTIES.items()):
        for name in _WINDOWS:
            window = getattr(body, name)
            if window not in (None, -1):
                raise unsupported(name, window, send="-1, which is all tokens")
