"""scikit-learn, LightGBM and XGBoost models as skl2onnx and onnxmltools write them: ``python with_sklearn.py FOLDER``."""

import sys

import numpy as np
from lightgbm import LGBMClassifier
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType as MlFloat
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import SVC
from xgboost import XGBRegressor

rng = np.random.default_rng(0)
X = rng.standard_normal((80, 5)).astype(np.float32)
LABEL = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
TARGET = (X @ np.arange(5)).astype(np.float32)

MODELS = {
    "logistic": (make_pipeline(StandardScaler(), LogisticRegression()), LABEL),
    "forest": (RandomForestClassifier(5, max_depth=4, random_state=0), LABEL),
    "boosting": (GradientBoostingRegressor(n_estimators=10, random_state=0), TARGET),
    "mlp": (MLPClassifier((8,), max_iter=50, random_state=0), LABEL),
    "svc": (SVC(random_state=0), LABEL),
    "knn": (KNeighborsClassifier(3), LABEL),
    "kmeans": (KMeans(3, n_init=2, random_state=0), None),
    "pca": (make_pipeline(PCA(3), PolynomialFeatures(2), LogisticRegression()), LABEL),
    "gaussian_process": (GaussianProcessRegressor(), TARGET),
}


def main(folder):
    def write(name, proto):
        with open(f"{folder}/skl2onnx_{name}.onnx", "wb") as file:
            file.write(proto.SerializeToString())

    for name, (model, target) in MODELS.items():
        model.fit(X, target)
        options = {id(model): {"zipmap": False}} if name in ("forest", "mlp") else None
        write(name, to_onnx(model, X[:1], target_opset=15, options=options))
    words = np.array([["a", "b"], ["b", "c"], ["c", "a"], ["a", "c"]] * 5, dtype=object)
    encoder = make_pipeline(ColumnTransformer([("words", OneHotEncoder(), [0, 1])]), LogisticRegression())
    encoder.fit(words, np.arange(20) % 2)
    write("words", to_onnx(encoder, initial_types=[("x", StringTensorType([None, 2]))], target_opset=15))
    lightgbm = LGBMClassifier(n_estimators=5, max_depth=3, min_child_samples=2, verbose=-1).fit(X, LABEL)
    write("lightgbm", convert_lightgbm(lightgbm, initial_types=[("x", MlFloat([None, 5]))], target_opset=15))
    xgboost = XGBRegressor(n_estimators=5, max_depth=3).fit(X, TARGET)
    write("xgboost", convert_xgboost(xgboost, initial_types=[("x", MlFloat([None, 5]))], target_opset=15))


assert FloatTensorType
main(sys.argv[1])
