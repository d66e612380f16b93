"""`python -m sublayers`, also under `accelerate launch -m sublayers`."""

from sublayers.training.cli import main

main()
