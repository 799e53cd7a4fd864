"""Find near duplicates among photographs by perceptual hashes, at a calibrated distance threshold.

The hashes come from the package imagehash; kdiffhash finds the threshold and the groups, which are
drawn into duplicates.png. The photographs are samples that scikit-learn and
scikit-image install, so nothing is downloaded.
"""

from __future__ import annotations

import io
from pathlib import Path

import imagehash
import numpy as np
import skimage
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter, ImageFont
from sklearn.datasets import load_sample_images

from kdiffhash import HammingIndex, calibrate, draw_pairs, hamming, pack

FOLDER = Path(skimage.__file__).parent / "data"
TO_GROUP = ("china", "flower", "chelsea", "coffee", "astronaut", "rocket", "camera")
OTHERS = (  # no photograph is used both for calibration and for the groups
    *("brick.png", "cell.png", "clock_motion.png", "coins.png", "grass.png", "gravel.png"),
    *("hubble_deep_field.jpg", "ihc.png", "moon.png", "motorcycle_left.png", "retina.jpg"),
)


def read(name: str) -> Image.Image:
    samples = {"china": 0, "flower": 1}
    if name in samples:
        return Image.fromarray(load_sample_images().images[samples[name]])
    path = FOLDER / name if "." in name else next(FOLDER.glob(f"{name}.*g"))
    return Image.open(path).convert("RGB")


def tiles(image: Image.Image, n: int) -> list[Image.Image]:
    """Cut an image into n x n images that do not overlap."""
    width, height = image.width // n, image.height // n
    corners = [(width * i, height * j) for j in range(n) for i in range(n)]
    return [image.crop((x, y, x + width, y + height)) for x, y in corners]


def crop(image: Image.Image, share: float) -> Image.Image:
    """Cut off a share of the width and height on each side."""
    x, y = int(share * image.width), int(share * image.height)
    return image.crop((x, y, image.width - x, image.height - y))


def jpeg(image: Image.Image) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=8)
    return Image.open(file).convert("RGB")


def write_text(image: Image.Image) -> Image.Image:
    copy, size = image.copy(), image.height // 7
    draw = ImageDraw.Draw(copy)
    place = (image.width // 2, image.height // 6)
    style = {"stroke_width": size // 12, "stroke_fill": "black", "anchor": "mm"}
    draw.text(place, "HELLO", "white", ImageFont.load_default(size), **style)
    return copy


EDITS = {
    "original": lambda image: image,
    "JPEG": jpeg,
    "scaled": lambda image: image.resize((96, 96 * image.height // image.width)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.6),
    "blurred": lambda image: image.filter(ImageFilter.GaussianBlur(image.width / 150)),
    "text": write_text,
    "crop 4 %": lambda image: crop(image, 0.04),
    "crop 12 %": lambda image: crop(image, 0.12),
}


def hashes(images: list[Image.Image]) -> np.ndarray:
    """Return the 64 bits of pHash of each image as packed codes, shape (n, 8)."""
    return pack([imagehash.phash(image).hash.ravel() for image in images])


# Calibration: positive pairs are two versions of one tile, negative pairs are different tiles.
originals = [tile for name in OTHERS for tile in tiles(read(name), 4)]
versions = [edit(tile) for tile in originals for edit in EDITS.values()]
labels = np.repeat(np.arange(len(originals)), len(EDITS))
pairs, similar = draw_pairs(labels, 3_000, 15_000, random_state=0)
codes = hashes(versions)
print("FPR     distance  recall  false pairs among 10,000 images")
for fpr in (0.01, 0.0003):  # below 3 / 15,000, calibrate would ask for more negative pairs
    threshold = calibrate(codes, similar, pairs=pairs, fpr=fpr)
    expected = threshold.expected_false_pairs(10_000)
    print(
        f"{fpr:<8}{threshold.distance:<10}{threshold.tpr:<8.0%}"
        f"{expected.value:,.0f} (95 % interval {expected.low:,.0f} to {expected.high:,.0f})"
    )
# A tile is in many pairs, so these intervals are too narrow. Use many images and few pairs of each.

# Groups among all versions of the other photographs.
files = [(name, edit) for name in TO_GROUP for edit in EDITS]
images = {name: read(name) for name in TO_GROUP}
versions = [EDITS[edit](images[name]) for name, edit in files]
codes = hashes(versions)
index = HammingIndex(codes, ids=[f"{name} {edit}" for name, edit in files])
groups = index.groups(threshold.distance, method="greedy")
for members in groups:
    print(", ".join(members))
print(f"keep {len(groups.keep)} of {len(files)} files")


# Draw one row per photograph. Versions in the group of the original have a frame, others are faded.
COLOURS = ("#2a7f62", "#c8553d", "#3d5a98", "#b8860b", "#7b4b94", "#1f8a9e", "#5c6b73")
SIZE, GAP, LEFT, TOP = 200, 22, 150, 160
INK, GREY, PAPER = "#222222", "#8a8a8a", "#fbfaf7"
distances = hamming(codes.reshape(len(TO_GROUP), len(EDITS), -1), codes[:: len(EDITS), None])
height = TOP + len(TO_GROUP) * (SIZE + GAP) + GAP
sheet = Image.new("RGB", (LEFT + len(EDITS) * (SIZE + GAP) + GAP, height), PAPER)
draw = ImageDraw.Draw(sheet)


def rounded(size: tuple[int, int], radius: int) -> Image.Image:
    """Return a mask with round corners, smooth because it is drawn four times larger."""
    mask = Image.new("L", (4 * size[0], 4 * size[1]), 0)
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, *mask.size), 4 * radius, fill=255)
    return mask.resize(size)


def paste_thumbnail(image: Image.Image, x: int, y: int, colour: str) -> None:
    """Paste the middle of an image, cut to a square, into a frame."""
    side = min(image.size)
    box = ((image.width - side) / 2, (image.height - side) / 2)
    square = image.resize((SIZE, SIZE), box=(*box, box[0] + side, box[1] + side))
    frame = (SIZE + 10, SIZE + 10)
    sheet.paste(Image.new("RGB", frame, colour), (x - 5, y - 5), rounded(frame, 17))
    sheet.paste(square, (x, y), rounded((SIZE, SIZE), 13))


def paste_badge(text: str, x: int, y: int, colour: str) -> None:
    """Paste a number in a coloured pill, its lower right corner at (x, y)."""
    size = (24 + 14 * len(text), 36)
    sheet.paste(Image.new("RGB", size, colour), (x - size[0], y - size[1]), rounded(size, 18))
    place = (x - size[0] / 2, y - size[1] / 2)
    draw.text(place, text, "white", ImageFont.load_default(24), anchor="mm")


title = f"{len(files)} files, {len(groups)} groups, {len(groups.keep)} files to keep"
draw.text((GAP + 8, 20), title, INK, ImageFont.load_default(40))
subtitle = (
    f"pHash, 64 bits. Badges: bits that differ from the original. Framed: at most "
    f"{threshold.distance}, the threshold for an FPR of {fpr:.2%}. Faded: not in its group."
)
draw.text((GAP + 8, 74), subtitle, GREY, ImageFont.load_default(24))
for column, edit in enumerate(EDITS):
    x = LEFT + column * (SIZE + GAP) + SIZE // 2
    draw.text((x, TOP - 26), edit, INK, ImageFont.load_default(24), anchor="mm")
for number, (name, _) in enumerate(files):
    row, column = divmod(number, len(EDITS))
    x, y = LEFT + column * (SIZE + GAP), TOP + row * (SIZE + GAP)
    first = groups.representative_rows[number]
    colour = COLOURS[first // len(EDITS)]
    is_member = first // len(EDITS) == row and first % len(EDITS) == 0
    if column == 0:
        draw.text((LEFT - 24, y + SIZE // 2), name, colour, ImageFont.load_default(26), anchor="rm")
    faded = Image.blend(versions[number], Image.new("RGB", versions[number].size, PAPER), 0.55)
    paste_thumbnail(versions[number] if is_member else faded, x, y, colour if is_member else PAPER)
    if column:
        text = str(distances[row, column])
        paste_badge(text, x + SIZE - 8, y + SIZE - 8, colour if is_member else GREY)
sheet.save("duplicates.png")
print("duplicates.png shows the groups")
