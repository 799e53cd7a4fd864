"""A self-contained HTML page of search results, with the matches drawn."""

from __future__ import annotations

import base64
import os
from html import escape
from pathlib import Path

from .._util.files import replacing
from .drawing import draw_matches, encode_image
from .photo_index import PhotoResult
from .photo_matching import SIZE, Photo, read_image

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Photographs similar to {name}</title>
<style>
  :root {{ color-scheme: light dark; --line: #8884; --good: #2a9d3a; --bad: #d33; }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto;
         padding: 0 1rem; }}
  h1 {{ font-size: 1.5rem; margin-bottom: 0; }}
  .key b {{ color: var(--good); }} .key i {{ color: var(--bad); font-style: normal; }}
  article {{ border: 1px solid var(--line); border-radius: .6rem; margin: 1.2rem 0;
            overflow: hidden; }}
  article header {{ display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; align-items: baseline;
                   padding: .6rem 1rem; }}
  article h2 {{ font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }}
  article p {{ margin: 0; opacity: .8; }}
  img {{ display: block; width: 100%; height: auto; }}
</style>
<h1>Photographs similar to {name}</h1>
<p class="key">The query is on the left of each image. <b>Green</b> lines are inliers of the
geometry between the two photographs, <i>red</i> lines are outliers.</p>
{cards}
</html>
"""
_CARD = """<article>
<header><h2>{rank}. {name}</h2><p>{inliers:,} inliers of {matches:,} matches{caveat}</p>
<p>{votes:.0f} votes</p></header>
{image}
</article>"""


def write_page(
    path: str | os.PathLike[str], query: Photo, results: list[PhotoResult], size: int | None = SIZE
) -> None:
    """Write the results of a search as an HTML page, with the matches drawn.

    Parameters
    ----------
    path : path
        HTML file to write.
    query : Photo
        The photograph that was searched for.
    results : list of PhotoResult
        Results of `PhotoIndex.search`.
    size : int or None, default=1600
        Size to which the photographs of the index were reduced; None for full size.
    """
    cards = [
        _CARD.format(
            rank=rank,
            name=escape(str(result.path)),
            inliers=result.n_inliers,
            caveat="" if result.is_verified else ", possibly by chance",
            matches=len(result.matches.pairs),
            votes=result.votes,
            image=_image(query, result, size),
        )
        for rank, result in enumerate(results, 1)
    ]
    content = (
        "\n".join(cards)
        or "<p>No photograph in the index has features in common with the query.</p>"
    )
    page = _PAGE.format(name=escape(query.name), cards=content)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _image(query: Photo, result: PhotoResult, size: int | None) -> str:
    """Return an img element with the matches of a result, or a paragraph if it is unreadable."""
    try:
        other = read_image(result.path, size)
    except (OSError, ValueError) as error:
        return f"<p>{escape(str(error))}</p>"
    content = encode_image(draw_matches(query.image, other, result.matches), ".jpg")
    data = base64.b64encode(content).decode()
    name = escape(Path(result.path).name, quote=True)
    return f'<img alt="Matches with {name}" src="data:image/jpeg;base64,{data}">'
