"""GGUF files that are damaged, cut off or made up are one line each, and take neither memory nor time."""

import json
import struct
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infer_models import CheckpointError
from infer_models.checkpoint import read_checkpoint_config
from infer_models.checkpoint.stored_tensors import open_tensors
from infer_models.gguf.header import GgufArray, read_header
from infer_models.text.files.tokenizer_files import read_tokenizer_files
from infer_proofs.models import save_tiny, save_tiny_tokenizer
from infer_proofs.models.gguf_files import save_gguf

U32, U64, STRING, ARRAY, F32 = 4, 10, 8, 9, 6


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str, kind: int, data: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + data


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_bytes(
    *pairs: bytes,
    tensors: tuple[bytes, ...] = (),
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
    data: bytes = b"",
) -> bytes:
    """Return a file; counts are true where they are not given."""
    counts = (len(tensors) if num_tensors is None else num_tensors, len(pairs) if num_pairs is None else num_pairs)
    header = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


NAME = pair("general.architecture", STRING, text("llama"))
HUGE = 2**63
FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "another format": (b"PK\x03\x04" + bytes(40), "is a zip archive"),
    "no format": (b"abcdefgh" * 8, "does not begin with `GGUF`"),
    "cut in the magic number": (b"GG", "does not begin with `GGUF`"),
    "cut in the version": (b"GGUF\x03", "the version would end beyond"),
    "cut in the counts": (b"GGUF" + struct.pack("<IQ", 3, 1), "the counts would end beyond"),
    "an old version": (gguf_bytes(version=1), "is GGUF version 1; 2 and 3 are read"),
    "a big-endian file": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "more tensors than memory": (gguf_bytes(num_tensors=HUGE), f"announces {HUGE} tensors"),
    "more values than bytes": (gguf_bytes(num_pairs=HUGE), f"and {HUGE} values"),
    "a key of gigabytes": (gguf_bytes(struct.pack("<Q", HUGE), num_pairs=1), f"gives a key {HUGE} bytes"),
    "a string of gigabytes": (
        gguf_bytes(text("general.name") + struct.pack("<IQ", STRING, 3 << 30)),
        f"gives `general.name` {3 << 30} bytes",
    ),
    "a string beyond the end": (
        gguf_bytes(text("general.name") + struct.pack("<IQ", STRING, 100_000)),
        "`general.name` would end beyond",
    ),
    "an unknown type of value": (gguf_bytes(pair("a", 13, b"")), "gives `a` the unknown type 13"),
    "an array of arrays": (
        gguf_bytes(pair("a", ARRAY, struct.pack("<IQIQ", ARRAY, 1, ARRAY, 1))),
        "makes `a` an array of arrays",
    ),
    "an array of too many numbers": (
        gguf_bytes(pair("a", ARRAY, struct.pack("<IQ", U64, HUGE))),
        "`a` would end beyond",
    ),
    "an array of too many strings": (
        gguf_bytes(pair("a", ARRAY, struct.pack("<IQ", STRING, HUGE))),
        f"gives `a` {HUGE} items, more than the file has room for",
    ),
    "a key twice": (gguf_bytes(NAME, NAME), "has the key `general.architecture` twice"),
    "no dimensions": (gguf_bytes(tensors=(tensor("a", ()),)), "gives tensor `a` 0 dimensions"),
    "dimensions without end": (
        gguf_bytes(tensors=(text("a") + struct.pack("<I", 2**32 - 1),)),
        f"gives tensor `a` {2**32 - 1} dimensions",
    ),
    "a size of zero": (gguf_bytes(tensors=(tensor("a", (0, 4)),)), "the shape [4, 0]"),
    "sizes that overflow": (
        gguf_bytes(tensors=(tensor("a", (2**32, 2**32, 2**32)),)),
        "is truncated: it has",
    ),
    "rows that are no blocks": (gguf_bytes(tensors=(tensor("a", (33, 2), 8),)), "whose rows are no blocks of 32"),
    "a type that is not read": (
        gguf_bytes(tensors=(tensor("a", (256,), 41),)),
        "is of type Q1_0, which is not read",
    ),
    "a type of Ollama alone": (  # ggml-org/llama.cpp#15597
        gguf_bytes(tensors=(tensor("a", (256,), 4),)),
        "which is MXFP4 in Ollama's own order (of gpt-oss llama.cpp's files are read, such as those of ggml-org/",
    ),
    "a type that does not exist": (gguf_bytes(tensors=(tensor("a", (256,), 999),)), "is of type number 999"),
    "data beyond the end": (gguf_bytes(tensors=(tensor("a", (8,)),), data=bytes(31)), "tensor `a` ends at"),
    "an offset beyond the end": (gguf_bytes(tensors=(tensor("a", (8,), offset=HUGE),)), "tensor `a` ends at"),
    "an odd offset": (gguf_bytes(tensors=(tensor("a", (2,), offset=5),), data=bytes(64)), "puts tensor `a` at 5"),
    "a tensor twice": (
        gguf_bytes(tensors=(tensor("a", (2,)), tensor("a", (2,))), data=bytes(64)),
        "has tensor `a` twice",
    ),
    "an odd alignment": (
        gguf_bytes(pair("general.alignment", U32, struct.pack("<I", 24))),
        "`general.alignment` that is no power of two",
    ),
    "an alignment of text": (
        gguf_bytes(pair("general.alignment", STRING, text("32"))),
        "`general.alignment` that is no power of two",
    ),
}


@pytest.mark.covers("gguf/hostile")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_damaged_file_is_one_line_and_takes_no_memory(fault: str, tmp_path: Path) -> None:
    data, message = FAULTS[fault]
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    started = time.monotonic()
    try:
        with pytest.raises(CheckpointError) as caught:
            read_header(path)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert peak < 16 << 20
    assert time.monotonic() - started < 5


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole file with a tokenizer."""
    folder = tmp_path_factory.mktemp("whole")
    save_tiny("llama", folder, num_hidden_layers=1)
    save_tiny_tokenizer(folder)
    save_gguf(folder, folder / "model.gguf", kind_of=lambda name: "Q4_0" if "ffn" in name else None)
    return (folder / "model.gguf").read_bytes()


def refusal(path: Path) -> str | None:
    """Read everything that is read of a file but the numbers; return the error."""
    try:
        with open_tensors(path):
            read_checkpoint_config(path)
            read_tokenizer_files(path)
    except CheckpointError as error:
        return str(error)
    return None


@pytest.mark.covers("gguf/hostile")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_with_any_bytes_changed_is_read_or_refused(whole: bytes, tmp_path: Path, data: st.DataObject) -> None:
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, min(len(whole), 40_000) - 1))
        changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(whole))))
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"
    path.write_bytes(bytes(changed[:cut]))
    error = refusal(path)
    assert error is None or "\n" not in error


def test_a_header_is_the_same_however_it_is_cut_into_reads(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def values(path: Path) -> str:
        header = read_header(path)
        items = {
            key: value.items() if isinstance(value, GgufArray) else value for key, value in header.metadata.items()
        }
        return json.dumps([items, [[name, each[1:]] for name, each in header.tensors.items()]])

    paths = [tmp_path / f"{size}.gguf" for size in (1, 7, 64, 1 << 22)]
    found = set()
    for path in paths:
        path.write_bytes(whole)
        monkeypatch.setattr("infer_models.gguf.header._READ_BYTES", int(path.stem))
        found.add(values(path))
    assert len(found) == 1


def test_a_header_is_read_once_until_the_file_changes(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(whole)
    first = read_header(path)
    assert read_header(path) is first
    path.write_bytes(gguf_bytes(NAME))
    assert dict(read_header(path).metadata) == {"general.architecture": "llama"}
    path.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        read_header(path)


LLAMA_COUNTS = [
    *("block_count", "context_length", "embedding_length", "feed_forward_length"),
    *("attention.head_count", "attention.head_count_kv"),
]


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ((), "the metadata has no `general.architecture`"),
        ((pair("general.architecture", U32, bytes(4)),), "`general.architecture` is 0; it must be a string"),
        (
            (pair("general.architecture", STRING, text("mamba")),),
            "`general.architecture` is 'mamba'; it must be one of",
        ),
        ((NAME, pair("general.type", STRING, text("mmproj"))), "its `general.type` is `mmproj`"),
        ((NAME,), "it is no whole model"),
    ],
)
def test_what_is_no_model_that_is_read_is_refused_by_name(
    pairs: tuple[bytes, ...], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(*pairs))
    with pytest.raises(CheckpointError) as caught:
        read_checkpoint_config(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", LLAMA_COUNTS[:3])
def test_a_value_that_is_missing_or_odd_is_named(missing: str, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    path = tmp_path / "model.gguf"
    save_gguf(tmp_path, path, metadata={missing: None})
    with pytest.raises(CheckpointError, match=f"the metadata has no `llama.{missing}`"):
        read_checkpoint_config(path)
    save_gguf(tmp_path, path, metadata={missing: "many"})
    with pytest.raises(CheckpointError, match=f"`llama.{missing}` is 'many'; it must be a whole number"):
        read_checkpoint_config(path)
    save_gguf(tmp_path, path, metadata={missing: [3, 4, 5]})
    with pytest.raises(CheckpointError, match="one number for all layers"):
        read_checkpoint_config(path)
