"""Greys a video frame by frame, each by way of a JPEG file, and writes it as XVID."""

import time
import uuid

import cv2
from contract import require, text

NAME, VERSION = "video-processing", 1
FRAMES_PER_SECOND = 20


def run(params, ctx):
    source, key = text(params, "input_bucket"), text(params, "object_key")
    target = text(params, "output_bucket")
    store, folder = ctx.s3(), ctx.folder()
    # Names of the call's own: frames of parallel calls must not mix.
    clip, still, result = folder / "input", folder / "frame.jpg", folder / "output.avi"
    store.download_file(source, key, str(clip))
    cv2.setNumThreads(1)
    start = time.perf_counter()
    video = cv2.VideoCapture(str(clip))
    size = (int(video.get(cv2.CAP_PROP_FRAME_WIDTH)), int(video.get(cv2.CAP_PROP_FRAME_HEIGHT)))
    writer = cv2.VideoWriter(
        str(result), cv2.VideoWriter_fourcc(*"XVID"), float(FRAMES_PER_SECOND), size
    )
    frames = 0
    while True:
        more, frame = video.read()
        if not more:
            break
        cv2.imwrite(str(still), cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY))
        writer.write(cv2.imread(str(still)))
        frames += 1
    video.release()
    writer.release()
    latency = time.perf_counter() - start
    written = cv2.VideoCapture(str(result))
    found = int(written.get(cv2.CAP_PROP_FRAME_COUNT))
    written.release()
    require(frames > 0 and found == frames, f"{found} frames written of {frames} read")
    uploaded = f"{uuid.uuid4().hex}-{key}.avi"
    store.upload_file(str(result), target, uploaded)
    stored = store.head_object(Bucket=target, Key=uploaded)["ContentLength"]
    require(stored == result.stat().st_size, "the video is not in the store")
    store.delete_object(Bucket=target, Key=uploaded)
    return {"latency": latency, "bytes": stored, "check": {"frames": frames}}
