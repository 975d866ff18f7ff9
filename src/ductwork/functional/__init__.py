"""The mathematics of ductwork as pure functions on tensors, with shapes and equation numbers in their docstrings.

Equations of "Dual Consolidation for Pre-Trained Model-Based Domain-Incremental Learning" (CVPR 2025):

====================  ==============================================  ===========================================
equation              says                                            function
====================  ==============================================  ===========================================
Eq. 1                 risk over all domains seen                      ``average_accuracy_at`` (100 % less the risk)
Eq. 2                 fine-tuning of embedding and classifier         ``block_cross_entropy(cosine_logits(...))``
Eq. 3                 L2P, learning of a prompt pool                  a training loss, with its method
Eq. 4                 merging with one weight                         ``consolidate(weight=alpha)``, ``merge_all``
Eq. 5                 class centres                                   ``class_centers``, ``CenterAccumulator``
Eq. 6                 task similarity                                 ``center_similarity``
Eq. 7                 merging with task similarity                    ``consolidate(weight=alpha * similarity)``
Eq. 8                 retraining of the new classifier                ``block_cross_entropy`` on frozen features
Eq. 9                 optimal transport                               ``transport_plan``
below Eq. 9           transport cost                                  ``transport_cost``
Eq. 10                interpolation of the old classifier             ``transport_head``
above Eq. 4           task vector                                     ``task_vector``
end of section 3.1    prediction, ``argmax mod |Y|``                  ``fold``
====================  ==============================================  ===========================================

Also here: accuracy bookkeeping (``summary``, ``forgetting``), and what the compared methods need: ``herd`` (Replay,
iCaRL, MEMO), ``RidgeAccumulator`` and ``select_ridge`` (RanPAC), ``complete_prototypes`` (EASE).

Names are imported when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ductwork.functional.centers import CenterAccumulator, center_similarity, class_centers
    from ductwork.functional.head import block_cross_entropy, cosine_logits, fold
    from ductwork.functional.herding import herd
    from ductwork.functional.merging import (
        add_to_sketch,
        consolidate,
        is_running_statistic,
        length_and_sketch,
        merge_all,
        task_vector,
        task_vector_cosine,
        task_vector_norm,
    )
    from ductwork.functional.metrics import (
        AccuracySummary,
        accuracy_matrix,
        average_accuracy_at,
        backward_transfer,
        forgetting,
        forgetting_chaudhry,
        forward_transfer,
        summary,
    )
    from ductwork.functional.prototypes import complete_prototypes
    from ductwork.functional.ridge import RIDGE_LAMBDAS, RidgeAccumulator, RidgeSelection, select_ridge
    from ductwork.functional.transport import (
        TransportPlan,
        plan_entropy,
        transport_cost,
        transport_head,
        transport_plan,
    )

__all__ = [
    "RIDGE_LAMBDAS",
    "AccuracySummary",
    "CenterAccumulator",
    "RidgeAccumulator",
    "RidgeSelection",
    "TransportPlan",
    "accuracy_matrix",
    "add_to_sketch",
    "average_accuracy_at",
    "backward_transfer",
    "block_cross_entropy",
    "center_similarity",
    "class_centers",
    "complete_prototypes",
    "consolidate",
    "cosine_logits",
    "fold",
    "forgetting",
    "forgetting_chaudhry",
    "forward_transfer",
    "herd",
    "is_running_statistic",
    "length_and_sketch",
    "merge_all",
    "plan_entropy",
    "select_ridge",
    "summary",
    "task_vector",
    "task_vector_cosine",
    "task_vector_norm",
    "transport_cost",
    "transport_head",
    "transport_plan",
]

_HOME = {
    "centers": "CenterAccumulator center_similarity class_centers",
    "head": "block_cross_entropy cosine_logits fold",
    "herding": "herd",
    "merging": "add_to_sketch consolidate is_running_statistic length_and_sketch merge_all task_vector"
    " task_vector_cosine task_vector_norm",
    "metrics": "AccuracySummary accuracy_matrix average_accuracy_at backward_transfer forgetting"
    " forgetting_chaudhry forward_transfer summary",
    "prototypes": "complete_prototypes",
    "ridge": "RIDGE_LAMBDAS RidgeAccumulator RidgeSelection select_ridge",
    "transport": "TransportPlan plan_entropy transport_cost transport_head transport_plan",
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
