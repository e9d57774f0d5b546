"""Input data, generated with fixed seeds and kept in the cache: nothing is downloaded.

Sizes and shapes follow the originals of the studied suite, whose licences are unclear or forbid
shipping the originals. `make` is asked for one profile at a time, because the paper's sizes take a
minute.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import string
import subprocess
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

#: Raised when what is generated changes, so that caches of before are not taken.
VERSION = 1
SEED = 20_220
IMAGES = {"smoke": (320, 180), "edge": (1280, 720), "paper": (4742, 2667)}
#: Rows; 18,196 are 10 MB.
REVIEWS = {"smoke": 600, "edge": 1_820, "paper": 18_196}
#: Width, height, frames.
VIDEOS = {"smoke": (160, 90, 25), "edge": (320, 180, 125), "paper": (1280, 720, 1550)}
OBJECTS_MIB = {"smoke": 1, "edge": 5, "paper": 100}
#: Records; 24,861 are 26 MB.
RECORDS = {"smoke": 57, "edge": 950, "paper": 24_861}
#: Bytes of the pages that functions fetch.
PAGES = {"4": 4, "5": 5, "1k": 1_000, "10k": 10_000, "100k": 100_000}
SCORES, SCORE_WEIGHTS = [1, 2, 3, 4, 5], [9, 5, 8, 14, 64]
VOCABULARY = 20_000


def image(path: Path, profile: str) -> None:
    """A picture about as hard to compress as a photograph: fields of sines and noise."""
    width, height = IMAGES[profile]
    noise = np.random.default_rng(SEED)
    x = np.linspace(0, 1, width)[None, :]
    y = np.linspace(0, 1, height)[:, None]
    channels = []
    for channel in range(3):
        field = np.zeros((height, width))
        for at in range(1, 9):
            a, b, phase = noise.uniform(1, 6 * at, 3)
            field += np.sin(2 * math.pi * (a * x + b * y) + phase) / at
        field += noise.normal(0, 0.06 + 0.01 * channel, (height, width))
        low, high = field.min(), field.max()
        channels.append(((field - low) / (high - low) * 255).astype(np.uint8))
    Image.fromarray(np.dstack(channels)).save(path, "JPEG", quality=85)


def reviews(path: Path, profile: str) -> None:
    """Texts of made-up words distributed by Zipf's law, with words of praise and blame according to
    the score."""
    chance = random.Random(SEED)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words: list[str] = []
    seen = set()
    while len(words) < VOCABULARY:
        word = "".join(chance.choices(syllables, k=chance.choice([1, 2, 2, 3, 3, 4])))
        word += chance.choice(string.ascii_lowercase)
        if word not in seen:
            seen.add(word)
            words.append(word)
    weights = np.cumsum(1.0 / np.arange(1, VOCABULARY + 1)).tolist()
    tone = {score: words[400 + 20 * score : 420 + 20 * score] for score in SCORES}
    with path.open("w") as file:
        file.write("Text,Score\n")
        for _ in range(REVIEWS[profile]):
            score = chance.choices(SCORES, SCORE_WEIGHTS)[0]
            count = max(20, int(chance.lognormvariate(4.3, 0.5)))
            text = chance.choices(words, cum_weights=weights, k=count)
            for at in range(0, count, 8):
                if chance.random() < 0.6:
                    text[at] = chance.choice(tone[score])
            file.write(f'"{" ".join(text).capitalize()}.",{score}\n')


def video(path: Path, profile: str) -> None:
    """A moving picture with noise, encoded by ffmpeg as H.264 if ffmpeg is present, otherwise by
    OpenCV as MPEG-4."""
    width, height, frames = VIDEOS[profile]
    if shutil.which("ffmpeg"):
        source = f"testsrc2=size={width}x{height}:rate=25:duration={frames / 25}"
        command = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", source, "-vf"]
        command += ["noise=alls=12:allf=t", "-c:v", "libx264", "-b:v", "1300k", "-pix_fmt"]
        subprocess.run([*command, "yuv420p", str(path)], check=True)
        return
    noise = np.random.default_rng(SEED)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 25.0, (width, height))
    x = np.arange(width, dtype=np.float32)[None, :]
    y = np.arange(height, dtype=np.float32)[:, None]
    for at in range(frames):
        wave = 127 + 100 * np.sin((x + 3 * at) / 40) * np.cos((y - 2 * at) / 30)
        frame = wave[:, :, None] + noise.normal(0, 6, (height, width, 1)) + np.array([0, 10, 20])
        writer.write(np.clip(frame, 0, 255).astype(np.uint8))
    writer.release()


def blob(path: Path, profile: str) -> None:
    """Bytes that do not compress."""
    chance = random.Random(SEED)
    with path.open("wb") as file:
        for _ in range(OBJECTS_MIB[profile]):
            file.write(chance.randbytes(1 << 20))


def records(path: Path, profile: str) -> None:
    """Events of repositories, about a kilobyte each."""
    chance = random.Random(SEED)

    def word(length: int) -> str:
        return "".join(chance.choices(string.ascii_lowercase, k=length))

    events = []
    for at in range(RECORDS[profile]):
        actor = {"id": chance.randrange(10**6), "login": word(9), "url": f"https://{word(12)}.test"}
        commits = [
            {"sha": chance.randbytes(20).hex(), "message": " ".join(word(6) for _ in range(8))}
            for _ in range(4)
        ]
        payload = {"push_id": chance.randrange(10**9), "size": len(commits), "commits": commits}
        created = f"2015-01-01T{at // 3600 % 24:02d}:{at // 60 % 60:02d}:{at % 60:02d}Z"
        event: dict[str, object] = {
            "id": str(2_489_651_045 + at),
            "type": "PushEvent",
            "actor": actor,
        }
        event |= {"payload": payload, "public": True, "created_at": created, "note": word(300)}
        events.append(event)
    path.write_text(json.dumps(events))


def pages(folder: Path) -> None:
    """Pages of the sizes that the studies fetch."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in PAGES.items():
        (folder / name).write_text(("page" * (size // 4 + 1))[:size])


#: Name of the file in the store, and who makes it.
OBJECTS: dict[str, tuple[str, Callable[[Path, str], None]]] = {
    "image-processing": ("image-{}.jpg", image),
    "model-training": ("reviews-{}.csv", reviews),
    "video-processing": ("video-{}.mp4", video),
    "s3-download-speed": ("object-{}", blob),
}
STATIC = ("records-{}.json", records)


def _cached(cache: Path, name: str, profile: str, maker: Callable[[Path, str], None]) -> Path:
    path = cache / f"data-{VERSION}" / name.format(profile)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside, then renamed: a file that is there is whole.
        unfinished = path.with_name("new-" + path.name)
        maker(unfinished, profile)
        unfinished.rename(path)
    return path


def make_object(cache: Path, workload: str, profile: str) -> Path:
    """The object that a workload requests from the store."""
    name, maker = OBJECTS[workload]
    return _cached(cache, name, profile, maker)


def make_static(cache: Path, profile: str) -> Path:
    """The folder of the static file server, with the JSON file of a profile."""
    folder = cache / f"static-{VERSION}"
    pages(folder)
    made = _cached(cache, STATIC[0], profile, STATIC[1])
    target = folder / made.name
    if not target.exists():
        shutil.copy(made, target)
    return folder
