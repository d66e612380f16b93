"""`sublayers export`: write a model's folder as one that works without this package."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Literal

from sublayers.extras import require
from sublayers.hub.sources import check_model
from sublayers.training.flags import flag, parse_flags
from sublayers.training.folders import refuse_to_overwrite

USAGE = "sublayers export SOURCE DESTINATION [--name value ...]"


@dataclass
class ExportArguments:
    """Flags of `sublayers export`."""

    source: Path = flag("a model's folder, such as the output_dir of a training command", MISSING, positional=True)
    destination: Path = flag("a new folder", MISSING, positional=True)
    format: Literal["package", "onnx", "openvino", "torch_export"] = flag(
        "with its code, for transformers, or as a graph for ONNX Runtime, OpenVINO or torch alone", "package"
    )
    weights: Literal["bfloat16", "float16"] | None = flag(
        "for package: store weights in 16 bits, in half of the space; the model is opened in its own type; default: "
        "as they are"
    )
    beside: list[Path] | None = flag(
        "for package: folders of models that were trained and measured alike, for the card to compare with"
    )
    int8: bool = flag(
        "for onnx and openvino: linear maps and embeddings in 8 bits; prints how much that changes", False
    )
    texts: Path | None = flag("for --int8: a file with a text in each line, to measure this")
    calibration_file: Path | None = flag(
        "for --int8: a file with a text in each line, to calibrate the ranges of 8 bits; not those of --texts"
    )


def main(argv: list[str]) -> None:
    """Run `export` or `export_graph` for the command line. Raises what they raise, and a ValueError for bad flags."""
    [arguments] = parse_flags(argv, [ExportArguments], USAGE, description=__doc__)
    if arguments.int8 and arguments.format not in ("onnx", "openvino"):
        raise ValueError(f"--int8 is not for {arguments.format}; add --format onnx or --format openvino")
    for name in ("weights", "beside"):
        if getattr(arguments, name) and arguments.format != "package":
            raise ValueError(f"--{name} is not for {arguments.format}; leave one of them out")
    for name, purpose in (("texts", "measuring"), ("calibration_file", "calibrating")):
        if (file := getattr(arguments, name)) and not arguments.int8:
            raise ValueError(f"--{name} {file} is for {purpose} int8; add --int8")
    source, destination = arguments.source, arguments.destination
    if arguments.format in ("onnx", "openvino"):
        require(arguments.format)
    for folder in (source, *(arguments.beside or [])):
        check_model(folder)
    refuse_to_overwrite(destination)
    # these imports take seconds, for which --help and simple mistakes do not wait
    if arguments.format == "package":
        from sublayers.training.trainers.export import export

        export(source, destination, weights=arguments.weights, beside=arguments.beside or ())
        print(f"{destination} loads with trust_remote_code=True where this package is not installed")
        return
    from sublayers.training.serve.export import export_graph

    report = export_graph(
        source, destination, arguments.format, arguments.int8, arguments.texts, arguments.calibration_file
    )
    print(
        f"{destination / report['file']}, {report['bytes'] / 1e6:.1f} MB; in 32 bits, its outputs are those of torch "
        f"but for {report['difference']:.1e}"
    )
    if not arguments.int8:
        return
    texts = f"{report['texts']} texts"
    if report["cosine"]:
        mean, smallest = report["cosine"]
        print(
            f"with int8, embeddings of {texts} have a cosine of {mean:.4f} to those before, and {smallest:.4f} at least"
        )
        return
    same = "" if report["same_label"] is None else f"; {report['same_label']:.1%} have the same label"
    mean, largest = (f"{report[name]:.2g}" for name in ("mean", "largest"))
    print(f"int8 changes the outputs of {texts} by {mean} on average and {largest} at most{same}")
