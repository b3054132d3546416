"""Additions that one is asked for, done on a copy of the sources: each takes the files in which it is declared."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
SOURCES = {path.name: path for path in PACKAGES.glob("*/src/*") if path.is_dir() and "-proofs" not in str(path)}


class Sources:
    """A copy of the sources of all packages, for changes.

    Attributes:
        changed: the files that were changed or added.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.changed: set[str] = set()
        for name, source in SOURCES.items():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))

    def add(self, file: str, text: str) -> None:
        """Add a file."""
        path = self._folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        self.changed.add(file)

    def insert(self, file: str, *, before: str, text: str) -> None:
        """Insert lines into a file before the line that `before` begins, which is there once."""
        old = (self._folder / file).read_text("utf-8")
        assert old.count(before) == 1, f"`{before}` is {old.count(before)} times in {file}"
        self.add(file, old.replace(before, text + before))

    def run(self, program: str) -> str:
        """Run a program on the copy, and return what it prints."""
        environment = os.environ | {"PYTHONPATH": str(self._folder)}
        done = subprocess.run(  # noqa: PLW1510 - its output is shown below
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """A copy of the sources."""
    return Sources(tmp_path)


def test_a_programs_imports_are_those_of_the_copy(sources: Sources, tmp_path: Path) -> None:
    assert sources.run("import infer_engine; print(infer_engine.__file__)").startswith(str(tmp_path))


def test_a_sampling_parameter_in_all_bodies_and_documents_is_one_declaration(sources: Sources) -> None:
    sources.insert(
        "infer_engine/protocol/sampling.py",
        before="    repetition_penalty: Annotated[\n",
        text='    top_a: Annotated[float, "Drop the less probable.", numbers(0, 1, apis=ALL, key="top_a")] = 0.0\n',
    )
    printed = sources.run(
        """
import msgspec
from infer_engine import SamplingParams
from infer_engine.protocol.sampling import SamplingDefaults
from infer_server.anthropic.request import MessagesBody
from infer_server.openai.chat.request import ChatBody
from infer_server.openai.completions.request import CompletionBody
from infer_server.openai.responses.request import ResponsesBody

for body in (CompletionBody, ChatBody, ResponsesBody, MessagesBody):
    print("top_a" in msgspec.json.schema(body)["$defs"][body.__name__]["properties"])
print(SamplingDefaults(top_a=0.5).fill(SamplingParams()).top_a)
try:
    SamplingParams(top_a=2)
except ValueError as error:
    print(error, error.code)
"""
    )
    refused = "`top_a` is 2; it must be a number in [0, 1]. decimal_above_max_value"
    assert printed.splitlines() == ["True", "True", "True", "True", "0.5", refused]
    assert len(sources.changed) == 1


def test_a_dense_family_with_gguf_files_is_one_folder(sources: Sources) -> None:
    folder = "infer_models/families/house"
    sources.add(f"{folder}/__init__.py", '"""A family."""\n')
    sources.add(
        f"{folder}/config.py",
        """
from infer_models.config.decoder_fields import read_decoder
from infer_models.config.registry import Family, default_sizes

FAMILIES = {
    "house": Family(
        read=read_decoder,
        build="infer_models.families.house.model:House",
        defaults=default_sizes(151936, 4096, 22016, 32, 32, 32, 32768),
    )
}
""",
    )
    sources.add(
        f"{folder}/model.py",
        "from infer_models.families.qwen2.model import Qwen2\n\n\nclass House(Qwen2):\n    pass\n",
    )
    sources.add(
        f"{folder}/gguf.py",
        """
from infer_models.gguf.architecture import Architecture

ARCHITECTURES = {"house": Architecture(model_type="house")}
""",
    )
    printed = sources.run(
        """
import json, pathlib, tempfile
import torch
from infer_models import ModelConfig
from infer_models.config.registry import family_modules
from infer_models.families import build_model
from infer_kernels import linear
from infer_models.layers import ParameterFactory

folder = pathlib.Path(tempfile.mkdtemp())
fields = {"model_type": "house", "vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
fields["num_key_value_heads"] = 2
(folder / "config.json").write_text(json.dumps(fields))
config = ModelConfig.from_folder(folder)
factory = ParameterFactory(dtype=torch.float32, device=torch.device("cpu"), linear=linear)
print(type(build_model(config, factory)).__name__)
print(any("house" in module.ARCHITECTURES for module in family_modules("gguf", like="house")))
"""
    )
    assert printed.split() == ["House", "True"]
    assert {Path(file).parent.as_posix() for file in sources.changed} == {folder}


def test_a_type_of_gguf_tensors_is_a_row_and_a_function(sources: Sources) -> None:
    sources.insert("infer_models/gguf/block_types.py", before='    39: ("MXFP4"', text='    99: ("Q8_9", 32, 34),\n')
    sources.insert(
        "infer_models/quantization/gguf/block_codes.py",
        before='@_reads("Q2_K")\n',
        text="""@_reads("Q8_9")
def _q8_9(data: Tensor) -> QuantizedWeight:
    return _weight("int8", data[:, :32].view(torch.int8), _float16(data[:, 32:]))


""",
    )
    printed = sources.run(
        """
import torch
from infer_models.gguf.block_types import BLOCK_TYPES
from infer_models.quantization.gguf.block_codes import read_blocks

codes, scale = torch.arange(-16, 16, dtype=torch.int8), torch.tensor([0.5], dtype=torch.float16)
block = torch.cat([codes.view(torch.uint8), scale.view(torch.uint8)])
weight = read_blocks("Q8_9", block.repeat(2, 3))
print(BLOCK_TYPES[99].name, torch.equal(weight.dequantize(), (codes * 0.5).repeat(2, 3)))
"""
    )
    assert printed.split() == ["Q8_9", "True"]
    assert len(sources.changed) == 2


def test_a_format_of_tool_calls_is_a_row_and_its_name(sources: Sources) -> None:
    sources.insert(
        "infer_models/text/chat/tool_formats.py",
        before="        ToolCallFormat(  # Llama 3.1, 3.2, 3.3\n",
        text="""        ToolCallFormat(
            name="house",
            trigger="<do>",
            is_anywhere=True,
            call_begin='<do>{"name": "',
            before_arguments='", "arguments": ',
            call_end="}</do>",
        ),
""",
    )
    sources.insert(
        "infer_engine/protocol/config/model.py", before='    "llama3_json",\n    "mistral",\n', text='    "house",\n'
    )
    printed = sources.run(
        """
from infer_engine import EngineConfig
from infer_engine.chat.output_parser import AnswerParser
from infer_models.text.chat.tool_formats import TOOL_CALL_FORMATS

EngineConfig(tool_call_format="house")
parser = AnswerParser(tool_call_format=TOOL_CALL_FORMATS["house"], tool_names=("time",))
deltas = [*parser.add('<do>{"name": "time", "arguments": {"at": 1}}</do>'), *parser.finish()]
print("".join(delta.name or "" for delta in deltas), "".join(delta.arguments for delta in deltas))
"""
    )
    assert printed == 'time {"at": 1}'
    assert len(sources.changed) == 2
