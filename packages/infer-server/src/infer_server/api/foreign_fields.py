"""The table of fields that clients of other servers send, with the values at which they change nothing here.

Three kinds: what never changes an answer is taken with any value; what would change one is taken at the values that
switch it off, and refused by name at others, with what to send instead; another name of a field means that field. A
null is always taken. What this server does is no row of the table but a field of a body, which takes the place of a row
of the same name.

A body with these fields is a subclass, which `decode_fields` reads and `check_foreign` checks.
"""

from typing import Annotated, Any, TypeVar

import msgspec

from infer_server.api.fields import check_restricted, described, restricted
from infer_server.api.validation import out_of_range, unsupported
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


def _elsewhere(send: str) -> msgspec.Meta:
    return restricted("Only null.", allow=("", [], {}), send=send)


class ForeignFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of other servers and of gateways, at values that change nothing."""

    # OpenAI and gateways
    user: Ignored = None
    metadata: Ignored = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    prediction: Ignored = None
    verbosity: Ignored = None
    modalities: Annotated[Any, restricted('Only ["text"].', allow=(["text"],), send='["text"]')] = None
    web_search_options: OnlyEmpty = None
    audio: OnlyNull = None
    moderation: OnlyNull = None
    provider: Ignored = None
    models: Ignored = None
    route: Ignored = None
    transforms: Ignored = None
    usage: Ignored = None
    session_id: Ignored = None
    trace: Ignored = None
    plugins: OnlyEmpty = None
    reasoning: OnlyEmpty = None
    thinking: OnlyEmpty = None
    enable_thinking: Annotated[Any, restricted("Only null.", send="a conversation to `/v1/chat/completions`")] = None
    extra_body: Annotated[
        dict[str, Any] | None, described("Its fields count as if they were beside the others, in place of those there.")
    ] = None
    extra_headers: Ignored = None
    headers: Ignored = None
    extra_query: Ignored = None
    drop_params: Ignored = None
    num_retries: Ignored = None
    timeout: Ignored = None
    tags: Ignored = None
    litellm_metadata: Ignored = None
    litellm_call_id: Ignored = None
    litellm_session_id: Ignored = None
    litellm_trace_id: Ignored = None
    cache_control: Ignored = None

    # AI SDK's settings under its own names
    reasoningEffort: Annotated[Any, another_name("reasoning_effort")] = None  # noqa: N815
    parallelToolCalls: Annotated[Any, another_name("parallel_tool_calls")] = None  # noqa: N815
    promptCacheKey: Ignored = None  # noqa: N815
    safetyIdentifier: Ignored = None  # noqa: N815
    serviceTier: Ignored = None  # noqa: N815
    textVerbosity: Ignored = None  # noqa: N815

    # Providers: Mistral, MiniMax, Qwen, GLM, Baseten
    random_seed: Annotated[Any, another_name("seed")] = None
    safe_prompt: OnlyOff = None
    prompt_mode: Annotated[Any, restricted("Only `reasoning`.", allow=("reasoning",), send="`reasoning_effort`")] = None
    reasoning_split: OnlyOn = None
    enable_search: OnlyOff = None
    search_options: OnlyEmpty = None
    vl_high_resolution_images: Ignored = None
    incremental_output: Ignored = None
    user_id: Ignored = None
    tool_stream: Ignored = None
    chat_template_args: Annotated[Any, another_name("chat_template_kwargs")] = None

    # Chat programs and editors: Open WebUI, Copilot
    chat_id: Ignored = None
    message_id: Ignored = None
    thread_id: Ignored = None
    response_language: Ignored = None
    snippy: Ignored = None
    intent: Ignored = None

    # vLLM
    best_of: OnlyOne = None
    use_beam_search: OnlyOff = None
    length_penalty: OnlyOne = None
    early_stopping: OnlyOff = None
    spaces_between_special_tokens: Ignored = None
    detokenize: OnlyOn = None
    echo: OnlyOff = None
    suffix: OnlyEmpty = None
    prompt_logprobs: Annotated[Any, restricted("Only null.", send="`echo` and `logprobs` to `/v1/completions`")] = None
    truncate_prompt_tokens: OnlyNull = None
    truncation_side: Ignored = None
    add_special_tokens: OnlyOff = None
    add_generation_prompt: OnlyOn = None
    continue_final_message: OnlyOff = None
    documents: OnlyEmpty = None
    chat_template: OnlyNull = None
    mm_processor_kwargs: OnlyEmpty = None
    media_io_kwargs: OnlyEmpty = None
    include_reasoning: OnlyOn = None
    thinking_token_budget: OnlyNull = None
    return_tokens_as_token_ids: OnlyOff = None
    return_token_ids: OnlyOff = None
    guided_decoding_backend: Ignored = None
    structural_tag: Annotated[Any, restricted("Only null.", send="`structured_outputs` with `structural_tag`")] = None
    logits_processors: OnlyEmpty = None
    kv_transfer_params: OnlyEmpty = None
    vllm_xargs: OnlyEmpty = None
    prompt_embeds: OnlyEmpty = None
    repetition_detection: OnlyNull = None
    request_id: Ignored = None
    data_parallel_rank: Ignored = None

    # SGLang
    regex: Annotated[Any, another_name("guided_regex")] = None
    ebnf: Annotated[Any, another_name("guided_grammar")] = None
    stop_regex: OnlyEmpty = None
    no_stop_trim: Annotated[Any, another_name("include_stop_str_in_output")] = None
    lora_path: OnlyNull = None
    input_ids: Annotated[Any, restricted("Only null.", send="`prompt` with the ids to `/v1/completions`")] = None
    separate_reasoning: OnlyOn = None
    stream_reasoning: OnlyOn = None
    return_hidden_states: OnlyOff = None
    return_routed_experts: OnlyOff = None
    return_cached_tokens_details: OnlyOff = None
    return_prompt_token_ids: OnlyOff = None
    session_params: OnlyNull = None
    custom_logit_processor: OnlyNull = None
    custom_params: OnlyEmpty = None
    bootstrap_host: OnlyNull = None
    bootstrap_port: OnlyNull = None
    bootstrap_room: OnlyNull = None
    extra_key: Annotated[Any, another_name("cache_salt")] = None
    rid: Ignored = None

    # llama.cpp
    samplers: Annotated[
        Any,
        restricted(
            "Only llama.cpp's default.", allow=([], "", "edskypmxt", "edkypmxt", "dkypmxt", _SAMPLERS, _OLDER_SAMPLERS)
        ),
    ] = None
    cache_prompt: Ignored = None
    id_slot: Ignored = None
    slot_id: Ignored = None
    n_keep: OnlyZero = None
    n_discard: Ignored = None
    n_indent: OnlyZero = None
    n_probs: Annotated[Any, restricted("Only 0.", allow=(0,), send="`logprobs`")] = None
    min_keep: Annotated[Any, restricted("Only 0 or 1.", allow=(0, 1), send="0")] = None
    t_max_prompt_ms: Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="-1")] = None
    t_max_predict_ms: Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="-1")] = None
    typical_p: OnlyOne = None
    typ_p: OnlyOne = None
    typical: OnlyOne = None
    tfs_z: OnlyOne = None
    tfs: OnlyOne = None
    top_a: OnlyZero = None
    top_n_sigma: Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="-1")] = None
    nsigma: Annotated[Any, restricted("Only 0 or -1.", allow=(0, -1), send="0")] = None
    xtc_probability: OnlyZero = None
    xtc_threshold: Ignored = None
    dry_multiplier: OnlyZero = None
    dry_base: Ignored = None
    dry_allowed_length: Ignored = None
    dry_penalty_last_n: Ignored = None
    dry_sequence_breakers: Ignored = None
    mirostat: OnlyZero = None
    mirostat_mode: OnlyZero = None
    mirostat_tau: Ignored = None
    mirostat_eta: Ignored = None
    dynatemp_range: OnlyZero = None
    dynatemp_exponent: Ignored = None
    repeat_penalty: Annotated[Any, restricted("Only 1.", allow=(1,), send="`repetition_penalty`")] = None
    repeat_last_n: PenaltyWindow = None
    penalty_last_n: PenaltyWindow = None
    penalize_nl: Ignored = None
    post_sampling_probs: OnlyOff = None
    timings_per_token: Ignored = None
    return_progress: Ignored = None
    return_tokens: OnlyOff = None
    response_fields: OnlyEmpty = None
    lora: OnlyEmpty = None
    image_data: OnlyEmpty = None
    multimodal_data: OnlyEmpty = None
    reasoning_format: Annotated[
        Any,
        restricted("Only `auto`, `deepseek` or `parsed`.", allow=("auto", "deepseek", "parsed"), send="`auto`"),
    ] = None
    reasoning_in_content: OnlyOff = None
    reasoning_budget: Annotated[Any, restricted("Only -1.", allow=(-1,), send="-1")] = None
    thinking_forced_open: OnlyOff = None
    parse_tool_calls: OnlyOn = None
    grammar_lazy: OnlyOff = None
    grammar_triggers: OnlyEmpty = None
    preserved_tokens: Ignored = None
    backend_sampling: Ignored = None
    speculative_n_max: Ignored = msgspec.field(default=None, name="speculative.n_max")
    speculative_n_min: Ignored = msgspec.field(default=None, name="speculative.n_min")
    speculative_p_min: Ignored = msgspec.field(default=None, name="speculative.p_min")

    # Ollama, text-generation-webui, KoboldCpp
    options: Annotated[Any, _elsewhere("its fields beside the others, under OpenAI's names")] = None
    num_predict: Annotated[Any, another_name("max_tokens")] = None
    num_ctx: Annotated[Any, restricted("Only null.", send="nothing: the server's `--max-seq-len` decides")] = None
    format: Annotated[Any, _elsewhere("`response_format`")] = None
    think: Annotated[Any, restricted("Only null.", send="`reasoning_effort`")] = None
    raw: OnlyOff = None
    keep_alive: Ignored = None
    do_sample: Annotated[Any, restricted("Only true.", allow=(True,), send="`temperature` 0")] = None
    smoothing_factor: OnlyZero = None
    smoothing_curve: Ignored = None
    dynamic_temperature: OnlyOff = None
    dynatemp_low: Ignored = None
    dynatemp_high: Ignored = None
    temperature_last: OnlyOff = None
    epsilon_cutoff: OnlyZero = None
    eta_cutoff: OnlyZero = None
    penalty_alpha: OnlyZero = None
    guidance_scale: OnlyOne = None
    negative_prompt: Ignored = None
    no_repeat_ngram_size: OnlyZero = None
    encoder_repetition_penalty: OnlyOne = None
    rep_pen: Annotated[Any, restricted("Only 1.", allow=(1,), send="`repetition_penalty`")] = None
    repetition_penalty_range: PenaltyWindow = None
    rep_pen_range: PenaltyWindow = None
    truncation_length: Ignored = None
    add_bos_token: OnlyOn = None
    ban_eos_token: Annotated[Any, restricted("Only false.", allow=(False,), send="`ignore_eos` true")] = None
    custom_token_bans: Annotated[Any, restricted('Only "".', allow=("", []), send="`logit_bias`")] = None
    banned_tokens: OnlyEmpty = None
    banned_strings: Annotated[Any, restricted("Only [].", allow=("", []), send="`bad_words`")] = None
    grammar_string: Annotated[Any, another_name("grammar")] = None
    sampler_priority: OnlyEmpty = None
    prompt_lookup_num_tokens: Ignored = None
    auto_max_new_tokens: OnlyOff = None
    max_tokens_second: OnlyZero = None

    # TGI
    details: OnlyOff = None
    decoder_input_details: OnlyOff = None
    return_full_text: OnlyOff = None
    watermark: OnlyOff = None
    truncate: OnlyNull = None
    adapter_id: OnlyNull = None
    top_n_tokens: OnlyZero = None
    tool_prompt: OnlyEmpty = None
    guideline: OnlyEmpty = None
    max_new_tokens: Annotated[Any, another_name("max_tokens")] = None


F = TypeVar("F", bound=ForeignFields)

_WINDOWS = ("repeat_last_n", "penalty_last_n", "repetition_penalty_range", "rep_pen_range")
_NO_PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}


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
            raise out_of_range(name, f"`{name}` is another name of `{meant}`, and both are given; send only one.")
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
