"""What the tools ask of checkpoints beside the models in them."""

from ..checkpoints import options


def model_options(state: dict) -> dict:
    """The options of the model in checkpoint `state`."""
    return options(state, "model")


def number_of_updates(state: dict) -> int:
    """How often the parameters in checkpoint `state` were updated."""
    return state["optimizer_history"][-1]["num_updates"]
