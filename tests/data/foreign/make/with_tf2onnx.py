"""Small Keras models as tf2onnx writes them. In an environment with tensorflow-cpu and tf2onnx: ``python with_tf2onnx.py FOLDER``."""

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import tensorflow as tf
import tf2onnx
from tensorflow.keras import layers as L

tf.keras.utils.set_random_seed(0)


def cnn(x):
    for channels in (8, 16):
        x = L.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = L.BatchNormalization()(x)
        x = L.ReLU()(x)
        x = L.MaxPooling2D()(x)
    return L.Dense(10, activation="softmax")(L.Dropout(0.3)(L.Flatten()(x)))


def mobile(x):
    x = L.Conv2D(8, 3, strides=2, padding="same")(x)
    x = L.BatchNormalization()(x)
    x = L.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    x = L.BatchNormalization()(x)
    x = L.ReLU(6.0)(x)
    x = L.Conv2D(16, 1)(x)
    scale = L.Dense(16, activation="sigmoid")(L.GlobalAveragePooling2D(keepdims=True)(x))
    return L.Dense(5)(L.GlobalAveragePooling2D()(L.Multiply()([x, scale])))


def unet(x):
    a = L.Conv2D(4, 3, padding="same", activation="relu")(x)
    b = L.Conv2D(8, 3, strides=2, padding="same", activation="relu")(a)
    up = L.UpSampling2D(2, interpolation="bilinear")(b)
    up = L.Concatenate()([a, up])
    return L.Conv2DTranspose(3, 2, strides=2)(L.Conv2D(4, 3, padding="same")(L.ZeroPadding2D(1)(up)))


def erf_gelu(x):
    return 0.5 * x * (1.0 + tf.math.erf(x / 2.0**0.5))


def transformer(x):
    y = L.LayerNormalization()(x)
    x = x + L.MultiHeadAttention(2, 8)(y, y)
    y = L.LayerNormalization()(x)
    return x + L.Dense(16)(L.Dense(32, activation=erf_gelu)(y))


def tanh_gelu(x):
    return L.Dense(4)(L.Activation(lambda t: tf.keras.activations.gelu(t, approximate=True))(L.Dense(16)(x)))


def lstm(x):
    return L.Dense(3)(L.LSTM(8)(L.Bidirectional(L.LSTM(6, return_sequences=True))(x)))


def gru(x):
    return L.Dense(3)(L.GRU(8, return_sequences=True)(x))


def text(x):
    y = L.Embedding(50, 8)(x)
    y = L.Conv1D(8, 3, padding="causal", activation="relu")(y)
    return L.Dense(2)(L.GlobalMaxPooling1D()(y))


def batch_norm_first(x):
    return L.Conv2D(4, 3)(L.ReLU()(L.BatchNormalization()(x)))


def group_norm(x):
    return L.GroupNormalization(2)(L.Conv2D(8, 3, padding="same")(x))


MODELS = {
    "cnn": (cnn, (28, 28, 1), "float32"),
    "mobile": (mobile, (32, 32, 3), "float32"),
    "unet": (unet, (16, 16, 3), "float32"),
    "transformer": (transformer, (6, 16), "float32"),
    "tanh_gelu": (tanh_gelu, (8,), "float32"),
    "lstm": (lstm, (7, 4), "float32"),
    "gru": (gru, (7, 4), "float32"),
    "text": (text, (12,), "int32"),
    "batch_norm_first": (batch_norm_first, (10, 10, 3), "float32"),
    "group_norm": (group_norm, (8, 8, 3), "float32"),
}


@tf.function(input_signature=[tf.TensorSpec([None, None, 8], tf.float32)])
def shapes(x):
    size = tf.shape(x)
    flat = tf.reshape(x, [size[0] * size[1], 8])
    back = tf.reshape(tf.nn.relu(flat), [size[0], size[1], 2, 4])
    return tf.transpose(back, [0, 2, 1, 3])[:, :, ::2, 1:]


@tf.function(input_signature=[tf.TensorSpec([2, 4, 4, 3], tf.float32)])
def image(x):
    y = tf.image.resize(x, [8, 8])
    y = tf.pad(y, [[0, 0], [1, 1], [1, 1], [0, 0]])
    y = tf.nn.conv2d(y, tf.constant(np.ones((3, 3, 3, 4), np.float32)), 1, "VALID")
    return tf.where(y > 0, y, tf.zeros_like(y)) + tf.cast(tf.shape(y)[1], tf.float32)


FUNCTIONS = {"shapes": shapes, "image": image}


def main(folder):
    for name, (build, shape, dtype) in MODELS.items():
        inputs = tf.keras.Input(shape, dtype=dtype, name="x")
        model = tf.keras.Model(inputs, build(inputs))
        for weight in model.weights:
            if "moving_variance" in weight.name or "gamma" in weight.name:
                weight.assign(tf.random.uniform(weight.shape, 0.5, 1.5))
            elif "mean" in weight.name or "bias" in weight.name or "beta" in weight.name:
                weight.assign(tf.random.uniform(weight.shape, -0.2, 0.2))
        call = tf.function(
            lambda x, model=model: model(x), input_signature=[tf.TensorSpec([None, *shape], dtype, name="x")]
        )
        tf2onnx.convert.from_function(call, call.input_signature, opset=13, output_path=f"{folder}/tf2onnx_{name}.onnx")
    for name, function in FUNCTIONS.items():
        path = f"{folder}/tf2onnx_{name}.onnx"
        tf2onnx.convert.from_function(function, function.input_signature, opset=15, output_path=path)


main(sys.argv[1])
