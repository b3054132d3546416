"""The messages between ingresses and replicas: a core's messages as bytes, with ids that no two ingresses share."""

from collections.abc import Mapping

import msgspec

from infer_engine.ipc.chunked_payloads import PromptLogprobsChunk
from infer_engine.messages import Finish, Inspect, StepResult, Submit
from infer_engine.protocol import EngineConfig, EngineInfo, EngineStats


class Opened(msgspec.Struct, frozen=True, tag=True):
    """The first frame of a session: requests may come."""

    stats: EngineStats


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The core has a request."""

    request_id: str


class KeepAlive(msgspec.Struct, frozen=True, tag=True):
    """Tells a replica that an ingress lives."""


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The model that a replica computes, so that an ingress uses only those of its own model.

    Attributes:
        config: what it was started with.
        info: what it has loaded.
    """

    config: EngineConfig
    info: EngineInfo

    def serves(self, config: EngineConfig) -> bool:
        """Whether it answers as a replica with `config` does; sizes and policies may differ."""
        return all(getattr(self.config, name) == getattr(config, name) for name in _DECIDES_ANSWERS)


FromIngress = Finish | Inspect | KeepAlive
FromReplica = Opened | Accepted | StepResult | PromptLogprobsChunk

_DECIDES_ANSWERS = ("model", "dtype", "load_format", "max_seq_len", "tool_call_format", "reasoning_format")
_SEPARATOR = "/"
_submissions = msgspec.msgpack.Decoder(Submit)
_messages = msgspec.msgpack.Decoder(FromIngress)


def global_id(session_id: str, request_id: str) -> str:
    """Return the id of an ingress' request among those of all ingresses."""
    return session_id + _SEPARATOR + request_id


def split_id(request_id: str) -> tuple[str, str]:
    """Return the session of a global id, and the request's id within it."""
    session_id, _, local = request_id.partition(_SEPARATOR)
    return session_id, local


def decode_submission(message: bytes, session_id: str) -> Submit:
    """Return a submission with global ids."""
    submit = _submissions.decode(message)
    group = submit.sibling_group
    return msgspec.structs.replace(
        submit,
        request_id=global_id(session_id, submit.request_id),
        sibling_group=None if group is None else global_id(session_id, group),
    )


def decode_message(message: bytes, session_id: str) -> FromIngress:
    """Return a message with global ids."""
    told: FromIngress = _messages.decode(message)
    if isinstance(told, Finish):
        return msgspec.structs.replace(told, request_id=global_id(session_id, told.request_id))
    return told


def encode_description(description: ReplicaDescription) -> dict[str, str]:
    """Return the metadata of a replica, which Ray Serve passes on."""
    return {"description": msgspec.json.encode(description).decode()}


def decode_description(metadata: Mapping[str, str]) -> ReplicaDescription:
    """Return the description in a replica's metadata."""
    return msgspec.json.decode(metadata["description"], type=ReplicaDescription)
