"""gpytorch's Gaussian processes: kernel matrices of any number of points."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fx2onnx.model_patches.patching import patches


@patches(
    "gpytorch.models.exact_prediction_strategies:DefaultPredictionStrategy.exact_prediction",
    reason="computes kernel matrices whole for any number of points; gpytorch takes those above a size in parts",
)
def exact_prediction(self: Any, test_mean: Tensor, test_test_covar: Any, test_train_covar: Any) -> tuple[Tensor, Any]:
    """The mean and the covariance of the predictive posterior, from dense matrices.

    Shapes:    test_mean [*, N], test_test_covar [*, N, N], test_train_covar [*, N, M] -> [*, N], [*, N, N].
    Source:    gpytorch.models.exact_prediction_strategies.DefaultPredictionStrategy.exact_prediction.
    """
    between, within = test_train_covar.to_dense(), test_test_covar.to_dense()
    return self.exact_predictive_mean(test_mean, between), self.exact_predictive_covar(within, between)
