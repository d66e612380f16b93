"""From the teacher's order to the student's, one neighbouring swap at a time."""

from collections.abc import Sequence

from transformers import TrainerCallback

from sublayers.configuration.order import Order
from sublayers.modeling.stack import SublayerStack


def moves(start: str, end: str) -> list[str]:
    """List orders from one to another of the same letters; each differs from the one before by a swap of neighbours.

    The end is built from its front: the first sublayer that should stand there moves to it past the others. So no two
    of a kind ever pass each other, and there is no shorter way. Then one `s` after the other becomes `m`, the last one
    first.
    """
    orders, end = [Order(start).by_weights], Order(end).letters
    for place, letter in enumerate(Order(end).by_weights):
        for i in range(orders[-1].index(letter, place), place, -1):
            last = orders[-1]
            orders.append(last[: i - 1] + last[i] + last[i - 1] + last[i + 1 :])
    changing = [i for i, letter in enumerate(end) if letter != orders[-1][i]]
    return orders + [orders[-1][:i] + end[i:] for i in reversed(changing)]


class MovesCallback(TrainerCallback):
    """Run a stack in the first of some orders, in the next one after a number of steps, and in the last one in the end.

    The step alone decides, so that a training can be resumed in between.
    """

    def __init__(self, stack: SublayerStack, orders: Sequence[str], every: int = 0):
        self.stack, self.orders, self.every = stack, orders, every

    def check(self, steps: int) -> None:
        """Check that the steps are enough for all moves.

        Raises:
            ValueError: they are not.
        """
        if (needed := self.every * (len(self.orders) - 1)) >= steps:
            raise ValueError(
                f"{len(self.orders) - 1} moves, one every {self.every} steps, take more than {needed} steps, and the "
                f"training has {steps}; train longer or give a smaller --moves_every"
            )

    def on_train_begin(self, args, state, control, **kwargs):
        """Choose the order to start, or go on, in."""
        self.on_step_begin(args, state, control)

    def on_step_begin(self, args, state, control, **kwargs):
        """Choose the order of the step."""
        made = state.global_step // max(self.every, 1)
        self.stack.run_in(self.orders[: made + 1][-1])

    def on_train_end(self, args, state, control, **kwargs):
        """Stay in the last order."""
        self.stack.run_in(self.orders[-1])
