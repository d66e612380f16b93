"""`sublayers export`: write a model's folder as one that works without this package."""

import argparse
from pathlib import Path

from sublayers.hub.sources import check_model
from sublayers.training.extras import require
from sublayers.training.folders import refuse_to_overwrite


def main(argv: list[str] | None = None) -> None:
    """Run `export` or `export_graph` for the command line."""
    parser = argparse.ArgumentParser(prog="sublayers export", description=__doc__)
    parser.add_argument("source", type=Path, help="a model's folder, such as the output_dir of a training command")
    parser.add_argument("destination", type=Path, help="a new folder")
    parser.add_argument(
        "--format",
        choices=("package", "onnx", "openvino", "torch_export"),
        default="package",
        help="with its code, for transformers (default), or as a graph for ONNX Runtime, OpenVINO or torch alone",
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="for onnx and openvino: linear maps and embeddings in 8 bits; prints how much that changes",
    )
    parser.add_argument("--texts", type=Path, metavar="FILE", help="for --int8: a text in each line, to measure this")
    parser.add_argument(
        "--calibration_file",
        type=Path,
        metavar="FILE",
        help="for --int8: a text in each line, to calibrate the ranges of 8 bits; not those of --texts",
    )
    arguments = parser.parse_args(argv)
    if arguments.int8 and arguments.format not in ("onnx", "openvino"):
        parser.error(f"--int8 is not for {arguments.format}; add --format onnx or --format openvino")
    for flag, purpose in (("texts", "measuring"), ("calibration_file", "calibrating")):
        if (file := getattr(arguments, flag)) and not arguments.int8:
            parser.error(f"--{flag} {file} is for {purpose} int8; add --int8")
    source, destination = arguments.source, arguments.destination
    if arguments.format in ("onnx", "openvino"):
        require(arguments.format)
    check_model(source)
    refuse_to_overwrite(destination)
    # these imports take seconds, for which --help and simple mistakes do not wait
    if arguments.format == "package":
        from sublayers.training.trainers.export import export

        export(source, destination)
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
