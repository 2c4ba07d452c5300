"""A diffusers pipeline, or a model of transformers part by part, as a folder: a graph for each method, and the configs and tokenizers."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx2onnx.base.errors import UserError
from fx2onnx.base.source import relative_path
from fx2onnx.exporting.contract import conditions_of, described, precision_of
from fx2onnx.files.folder_commit import CHECKED_SUFFIXES, VERSION
from fx2onnx.files.folder_files import inside
from fx2onnx.files.pipeline_index import PARTED_PREFIX, PREFIX, is_parted
from fx2onnx.manifest.form import GraphForm, Manifest, PipelineComponent, Port
from fx2onnx.sources.registry import parsed
from fx2onnx.sources.source import Options

if TYPE_CHECKING:
    import onnx_ir as ir

    from fx2onnx.exporting.result import ExportResult
    from fx2onnx.sources import Source
    from fx2onnx.sources.diffusers.kind import PipelineFolder


@dataclass(frozen=True)
class PipelineAssembly:
    """A pipeline as the files of a folder."""

    pipeline: PipelineFolder

    @classmethod
    def of(cls, spec: str, options: Mapping[str, Any], adapters: Collection[str] = ()) -> PipelineAssembly:
        """The assembly of ``diffusers:FOLDER``, ``hf:FOLDER`` or ``FOLDER``. Raises UserError E001, E302, E601."""
        from fx2onnx.sources.diffusers.kind import PipelineFolder

        if adapters:
            step = (
                "in diffusers, fuse it: pipe.load_lora_weights(ADAPTER); pipe.fuse_lora(); pipe.save_pretrained(FOLDER)"
            )
            raise UserError("E001", "--adapters is for language models, not for pipelines and codecs", next=step)
        if is_parted(spec):
            from fx2onnx.sources.hf.parts import PartedFolder

            return cls(PartedFolder(Path(spec.removeprefix(PARTED_PREFIX)).expanduser(), Options(**options)))
        _, name, keywords = parsed(spec if spec.startswith(PREFIX) else PREFIX + spec)
        if "component" in keywords:
            raise UserError(
                "E001",
                f"'{spec}' is one graph of a pipeline, and a folder holds all",
                next=[f"fx2onnx export '{spec}' -o FILE.onnx", f"fx2onnx export-folder {PREFIX}{name} -o FOLDER"],
            )
        if options.get("image_size") is not None:
            raise UserError("E001", "--image-size has no meaning for diffusers: sources")
        return cls(PipelineFolder(Path(name).expanduser(), Options(**options, keywords=keywords)))

    def sources(self) -> Iterator[tuple[str, Callable[[], Source]]]:
        """The sources of all graphs, by file."""
        for component in self.pipeline.components():
            for stem, make in component.parts().items():
                yield f"{stem}.onnx", make

    def write_configs(self, stage: Path, target: Path) -> None:
        """The index, the configs and the tokenizer files, in folders as they were."""
        folder = self.pipeline.folder
        if folder.resolve() == target.resolve():
            return
        for name in self.pipeline.configs_and_tokenizers():
            (stage / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(inside(folder, name), stage / name)

    def own_files(self, target: Path) -> list[str]:
        """The pipeline's files, where the folder is the pipeline's own."""
        if self.pipeline.folder.resolve() != target.resolve():
            return []
        files = [path for path in target.glob("**/*") if not path.name.endswith(CHECKED_SUFFIXES)]
        return [path.relative_to(target).as_posix() for path in files if path.is_file()]

    def manifest(self, results: Mapping[str, ExportResult], origin: Mapping[str, Any], target: Path) -> Manifest:
        """All but the files."""
        components = tuple(
            PipelineComponent(
                each.entry.name,
                {call.method: f"{each.stem(call)}.onnx" for call in each.calls},
                each.values(),
            )
            for each in self.pipeline.components()
        )
        return Manifest(
            VERSION,
            tuple(_form(name, result) for name, result in results.items()),
            source=self.pipeline.prefix + relative_path(self.pipeline.folder.resolve(), target.resolve()),
            seed=origin.get("seed", 0),
            options={key: value for key, value in origin.items() if key not in ("source", "task", "seed")},
            components=components,
            precision=precision_of(results),
        )


def _form(name: str, result: ExportResult) -> GraphForm:
    graph: ir.Graph = result.owned.model.graph
    inputs, outputs = (
        tuple(Port(port, "other", *of) for port, of in described(values).items())
        for values in (graph.inputs, graph.outputs)
    )
    return GraphForm(name, "component", inputs, outputs, tokens="all", conditions=conditions_of(result))


@contextlib.contextmanager
def of_component(file: str) -> Iterator[None]:
    """Errors inside say which graph they are of."""
    try:
        yield
    except UserError as error:
        raise UserError(
            error.code, f"{file}: {error.what}", where=error.where, why=error.why, next=error.next
        ) from error
