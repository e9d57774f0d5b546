"""Ten pictures made from one JPEG of the object store, saved and uploaded."""

import time
import uuid
import zlib

from contract import require, text
from PIL import Image, ImageFilter

NAME, VERSION = "image-processing", 1
THUMBNAIL = (128, 128)


def pictures(image):
    """Name and picture, one after the other, as ten at once would need ten times the memory."""
    transpose = Image.Transpose
    yield "flip-left-right", image.transpose(transpose.FLIP_LEFT_RIGHT)
    yield "flip-top-bottom", image.transpose(transpose.FLIP_TOP_BOTTOM)
    yield "rotate-90", image.transpose(transpose.ROTATE_90)
    yield "rotate-180", image.transpose(transpose.ROTATE_180)
    yield "rotate-270", image.transpose(transpose.ROTATE_270)
    yield "blur", image.filter(ImageFilter.BLUR)
    yield "contour", image.filter(ImageFilter.CONTOUR)
    yield "sharpen", image.filter(ImageFilter.SHARPEN)
    yield "grey", image.convert("L")
    small = image.copy()
    small.thumbnail(THUMBNAIL)
    yield "thumbnail", small


def run(params, ctx):
    source, key = text(params, "input_bucket"), text(params, "object_key")
    target = text(params, "output_bucket")
    store, folder, call = ctx.s3(), ctx.folder(), uuid.uuid4().hex
    store.download_file(source, key, str(folder / "input.jpg"))
    start = time.perf_counter()
    sizes = {}
    with Image.open(folder / "input.jpg") as image:
        image.load()
        for name, picture in pictures(image):
            picture.save(folder / f"{name}.jpg")
            sizes[name] = list(picture.size)
    latency = time.perf_counter() - start
    crc = zlib.crc32(picture.tobytes())
    keys = [f"{call}-{name}.jpg" for name in sizes]
    for name, uploaded in zip(sizes, keys, strict=True):
        store.upload_file(str(folder / f"{name}.jpg"), target, uploaded)
    listed = store.list_objects_v2(Bucket=target, Prefix=call)
    require(listed["KeyCount"] == len(keys), "not all pictures are in the store")
    store.delete_objects(Bucket=target, Delete={"Objects": [{"Key": name} for name in keys]})
    return {"latency": latency, "check": {"sizes": sizes, "thumbnail_crc": crc}}
