"""Fixes the threads of the linear algebra library before numpy loads it."""

import os

THREADS = int(os.environ.get("BLAS_THREADS", "1"))
for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(THREADS)
