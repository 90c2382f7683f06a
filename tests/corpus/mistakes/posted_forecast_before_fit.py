"""Compares two forecasts of one series: a model of statsmodels first, then one of Keras."""

import keras
import numpy as np
from statsmodels.tsa.arima.model import ARIMA

series = np.cumsum(np.random.default_rng(0).normal(size=2000)).astype("float32")
border = 1600

errors = []
for end in range(border, border + 20):
    model = ARIMA(series[:end], order=(1, 0, 0))
    model_fit = model.fit()
    errors.append(series[end] - model_fit.forecast(steps=1)[0])
print("ARIMA", np.mean(np.square(errors)))

windows = np.lib.stride_tricks.sliding_window_view(series, 25)
x, y = windows[:, :-1, None], windows[:, -1:]
model = keras.Sequential([keras.Input((24, 1)), keras.layers.LSTM(128), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
model.fit(x[:border], y[:border], epochs=5, batch_size=128)  # finding: DOC-201
print("LSTM", model.evaluate(x[border:], y[border:]))
