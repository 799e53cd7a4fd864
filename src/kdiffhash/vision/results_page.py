"""A self-contained HTML page of search results, with the matches drawn."""

from __future__ import annotations

import base64
import os
from html import escape
from pathlib import Path
from urllib.parse import quote

from .._util.files import replacing
from .drawing import draw_matches, encode_image
from .photo_index import MIN_INLIERS, PhotoResult
from .photo_matching import SIZE, Photo, read_image

_GENERATOR = '<meta name="generator" content="kdiffhash photos search">'
_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
{generator}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Photographs similar to {name}</title>
<style>
  :root {{ color-scheme: light dark; --line: #8884; --good: #2a9d3a; --bad: #d33; }}
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto;
         padding: 0 1rem; }}
  h1 {{ font-size: 1.5rem; margin-bottom: 0; }}
  h2 {{ font-size: 1.2rem; margin: 2rem 0 0; }}
  .key b {{ color: var(--good); }} .key i {{ color: var(--bad); font-style: normal; }}
  section div {{ display: grid; gap: 1.2rem; margin: 1rem 0;
                grid-template-columns: repeat(auto-fill, minmax(min(36rem, 100%), 1fr)); }}
  article {{ border: 1px solid var(--line); border-radius: .6rem; overflow: hidden; }}
  article header {{ padding: .6rem 1rem; }}
  article h3 {{ font-size: 1.05rem; margin: 0; overflow-wrap: anywhere; }}
  article p {{ margin: 0; opacity: .8; overflow-wrap: anywhere; }}
  article > p {{ padding: 0 1rem 1rem; }}
  img {{ display: block; width: 100%; aspect-ratio: 16 / 7; object-fit: contain; }}
</style>
<h1>Photographs similar to {name}</h1>
<p class="key">The query is on the left of each image. <b>Green</b> lines are inliers of the
geometry between the two photographs, <i>red</i> lines are outliers.</p>
{sections}
</html>
"""
_SECTION = """<section>
<h2>{title}</h2>
<p>{explanation}</p>
<div>
{cards}
</div>
</section>"""
_VERIFIED = (
    "Verified",
    "At least {n} matches agree with one geometry, more than unrelated photographs have by chance.",
)
_BY_CHANCE = (
    "Possibly by chance",
    "Fewer than {n} matches agree with one geometry.",
)
_CARD = """<article>
<header><h3>{rank}. <a href="{link}">{name}</a></h3>
<p>{inliers:,} inliers of {matches:,} matches, {votes:.0f} votes</p>
<p>{folder}</p></header>
{image}
</article>"""


def write_page(
    path: str | os.PathLike[str], query: Photo, results: list[PhotoResult], size: int | None = SIZE
) -> None:
    """Write the results of a search as an HTML page, with the matches drawn.

    Names are links to the original photographs: relative to the page if they are in its folder.

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
    sections = []
    ranked = list(enumerate(results, 1))
    for is_verified, (title, explanation) in ((True, _VERIFIED), (False, _BY_CHANCE)):
        cards = [
            _card(rank, result, query, Path(path).resolve().parent, size)
            for rank, result in ranked
            if result.is_verified == is_verified
        ]
        if cards:
            text = explanation.format(n=MIN_INLIERS)
            sections.append(_SECTION.format(title=title, explanation=text, cards="\n".join(cards)))
    content = "\n".join(sections) or (
        "<p>No photograph in the index has features in common with the query.</p>"
    )
    page = _PAGE.format(generator=_GENERATOR, name=escape(query.name), sections=content)
    with replacing(path) as temporary:
        temporary.write_text(page, encoding="utf-8")


def check_is_page(path: Path) -> None:
    """Raise if a file exists that is not a page of results, so that it would be lost."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        if _GENERATOR.encode() not in file.read(1000):
            raise ValueError(
                f"{path} exists and is not a page that kdiffhash wrote; choose another name, or "
                "replace it with --overwrite"
            )


def _card(rank: int, result: PhotoResult, query: Photo, folder: Path, size: int | None) -> str:
    """Return a result as HTML."""
    path = result.path
    inside = path.is_relative_to(folder)
    link = quote(path.relative_to(folder).as_posix()) if inside else path.as_uri()
    return _CARD.format(
        rank=rank,
        link=escape(link, quote=True),
        name=escape(path.name),
        folder=escape(str(path.parent)),
        inliers=result.n_inliers,
        matches=len(result.matches.pairs),
        votes=result.votes,
        image=_image(query, result, size),
    )


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
