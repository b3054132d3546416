"""The formats in which models write reasoning, and the search for that of a chat template."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """The texts between which a model thinks before it answers; each may be one token of its own.

    Attributes:
        name: name in the configuration.
        begin: before the reasoning, written by the prompt or by the model, or by neither.
        end: after it.
        channels: further texts around the messages of an answer that comes in channels, of which one is for reasoning;
            empty in other formats.
        tokens: the texts in `begin` and `end` that are one token; left out: both are.
    """

    name: str
    begin: str
    end: str
    channels: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that are one token in vocabularies of this format, if they have it."""
        return self.channels or self.tokens or (self.begin, self.end)


REASONING_FORMATS = {
    each.name: each
    for each in (
        # DeepSeek R1 and its distillations, Qwen 3, SmolLM 3, Granite 3.3, GLM 4.5, MiniMax M2, Kimi K2, Phi 4
        ReasoningFormat(name="think", begin="<think>", end="</think>"),
        ReasoningFormat(name="mistral", begin="[THINK]", end="[/THINK]"),  # Magistral
        ReasoningFormat(name="seed", begin="<seed:think>", end="</seed:think>"),  # Seed-OSS
        ReasoningFormat(name="kimi", begin="◁think▷", end="◁/think▷"),  # Kimi-VL
        ReasoningFormat(name="exaone", begin="<thought>", end="</thought>"),  # EXAONE Deep
        ReasoningFormat(name="cohere", begin="<|START_THINKING|>", end="<|END_THINKING|>"),  # Command A Reasoning
        ReasoningFormat(name="apertus", begin="<|inner_prefix|>", end="<|inner_suffix|>"),
        ReasoningFormat(
            name="gemma4", begin="<|channel>thought", end="<channel|>", tokens=("<|channel>", "<channel|>")
        ),
        ReasoningFormat(  # gpt-oss
            name="harmony",
            begin="<|channel|>analysis<|message|>",
            end="<|end|>",
            channels=("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
        ),
    )
}


def reasoning_format_of(template_source: str) -> ReasoningFormat | None:
    """Return the format whose marks the template writes or looks for; None where there are none.

    Many templates write the beginning alone, at the end of a prompt.
    """
    formats = REASONING_FORMATS.values()
    return next((each for each in formats if any(mark in template_source for mark in _signs(each))), None)


def _signs(reasoning: ReasoningFormat) -> tuple[str, ...]:
    """Return the texts of which each says that a template is for this format."""
    return ("<|channel|>",) if reasoning.channels else (reasoning.begin, reasoning.end)
