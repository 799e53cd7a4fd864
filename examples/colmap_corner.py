"""Reconstruct a 3D scene with COLMAP's features and mapper, and codes for the matching.

The photographs are rendered: two images on walls that meet at a right angle, seen by a moving
camera. Pass a folder of your own photographs as an argument to use those instead.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cv2
import numpy as np
import pycolmap
from sklearn.datasets import load_sample_images

from kdiffhash import load_pretrained
from kdiffhash.vision.colmap import match_images, read_images, verify_pairs, write_matches

WIDTH, HEIGHT, FOCAL = 800, 600, 700.0


def make_photos(folder: Path, n: int = 7) -> None:
    """Render n images of a corner; the walls are x = 0 and z = 0, each 3 wide and 2 high."""
    walls = [cv2.cvtColor(im, cv2.COLOR_RGB2GRAY) for im in load_sample_images().images]
    to_wall = np.diag([3 / walls[0].shape[1], 2 / walls[0].shape[0], 1])
    k = np.array([[FOCAL, 0, WIDTH / 2], [0, FOCAL, HEIGHT / 2], [0, 0, 1]])
    for i, angle in enumerate(np.linspace(0.45, 1.1, n)):
        centre = np.array([4.2 * np.cos(angle), 1.0 + 0.05 * i, 4.2 * np.sin(angle)])
        forward = np.array([0.7, 1.0, 0.7]) - centre
        forward /= np.linalg.norm(forward)
        across = np.cross([0, 1, 0], forward)
        across /= np.linalg.norm(across)
        rotation = np.stack([across, np.cross(forward, across), forward])
        image = np.full((HEIGHT, WIDTH), 128, np.uint8)
        for wall, axis in zip(walls, (0, 2)):  # along x on z = 0, along z on x = 0
            along = np.zeros((3, 3))
            along[axis, 0] = along[1, 1] = 1
            along[:, 2] = -centre
            h = k @ rotation @ along @ to_wall
            mask = cv2.warpPerspective(np.full_like(wall, 255), h, (WIDTH, HEIGHT))
            warped = cv2.warpPerspective(wall, h, (WIDTH, HEIGHT))
            image = np.where(mask > 127, warped, image)
        cv2.imwrite(str(folder / f"{i}.png"), image)


with tempfile.TemporaryDirectory() as scratch:
    photos, database = Path(scratch) / "photos", Path(scratch) / "database.db"
    photos.mkdir()
    if len(sys.argv) > 1:
        photos = Path(sys.argv[1])
    else:
        make_photos(photos)
    mode = pycolmap.CameraMode.SINGLE
    pycolmap.extract_features(database, photos, camera_mode=mode, device=pycolmap.Device.cpu)

    # These two lines replace COLMAP's matcher; `kdiffhash colmap match DATABASE` does the same.
    images = read_images(database, load_pretrained("rootsift", n_bits=256))
    write_matches(database, verify_pairs(match_images(images)))

    models = pycolmap.incremental_mapping(database, photos, Path(scratch))
    model = max(models.values(), key=lambda model: model.num_reg_images())
    error = model.compute_mean_reprojection_error()
    print(f"{model.num_reg_images()} of {len(images)} photographs registered")
    print(f"{model.num_points3D()} points, mean reprojection error {error:.2f} px")
    points = np.array([point.xyz for point in model.points3D.values()])
    cameras = np.array([image.projection_center() for image in model.images.values()])
    np.savez("scene.npz", points=points, cameras=cameras)
