"""Trains a classifier of reviews: clean, weigh words, logistic regression, upload the model."""

import time
import uuid

import blas
import joblib
import pandas
from contract import number, require, text
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

NAME, VERSION = "model-training", 1
ACCURACY_MIN = 0.66  # the largest class alone is 0.64


def run(params, ctx):
    dataset, key = text(params, "dataset_bucket"), text(params, "dataset_object_key")
    target, model_key = text(params, "model_bucket"), text(params, "model_object_key")
    min_df = number({"min_df": "100", **params}, "min_df")
    store, folder = ctx.s3(), ctx.folder()
    store.download_file(dataset, key, str(folder / "reviews.csv"))
    reviews = pandas.read_csv(folder / "reviews.csv")
    start = time.perf_counter()
    words = reviews["Text"].str.lower().str.replace("[^a-z]+", " ", regex=True)
    vectorizer = TfidfVectorizer(min_df=min_df)
    features = vectorizer.fit_transform(words)
    model = LogisticRegression(max_iter=200).fit(features, reviews["Score"])
    latency = time.perf_counter() - start
    accuracy = float(model.score(features, reviews["Score"]))
    require(accuracy >= ACCURACY_MIN, f"accuracy {accuracy}")
    # A file name of the call's own: those of parallel calls must not mix.
    path, uploaded = folder / "model.pk", f"{uuid.uuid4().hex}-{model_key}"
    joblib.dump(model, path)
    store.upload_file(str(path), target, uploaded)
    found = store.head_object(Bucket=target, Key=uploaded)["ContentLength"]
    require(found == path.stat().st_size, "the model is not in the store")
    store.delete_object(Bucket=target, Key=uploaded)
    return {
        "latency": latency,
        "accuracy": accuracy,
        "blas_threads": blas.THREADS,
        "check": {"vocabulary": len(vectorizer.vocabulary_)},
    }
