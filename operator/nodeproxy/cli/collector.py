"""How often the interpreter looks for cycles of garbage."""

import gc

_YOUNG = 50_000  # containers, by far not the 700 that the interpreter starts with
_GENERATIONS = 20


def calm_collector() -> None:
    """Have the interpreter look for cycles rarely; for a process that holds one large model.

    At 10,000 Services there are hundreds of thousands of objects, nearly all of them live long, and next to none form
    cycles. With the interpreter's own thresholds, half of the time of planning goes into going through all of them
    again and again, and a change can wait for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _GENERATIONS, _GENERATIONS)
