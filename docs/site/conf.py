"""The site: the repository's Markdown as it stands, and the story, as pages with a sidebar and a search.

docs/README.md says how to build it. Nothing is copied: Sphinx reads the pages where they are, and what the site needs
besides is added in its memory. Links to files that are no pages lead to the repository, which GITHUB_REPOSITORY names
as owner/name. Without that variable they lead to the files of this checkout.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from html import unescape
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.parsers import Parser

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from steps import sources  # noqa: E402  (needs the line above)

REPOSITORY = os.environ.get("GITHUB_REPOSITORY")
FILES = f"https://github.com/{REPOSITORY}/blob/main/"
STORY = "docs/story/index"
CHAPTERS = "docs/README"  # the page that lists the others

project = html_title = "FlashSteps"
html_theme = "furo"
html_theme_options = {}
if REPOSITORY:
    html_theme_options = {
        "source_repository": f"https://github.com/{REPOSITORY}/", "source_branch": "main", "source_directory": ""
    }  # fmt: skip
    html_baseurl = "https://{}.github.io/{}/".format(*REPOSITORY.split("/"))
html_copy_source = False
html_show_copyright = False
smartquotes = False
extensions = ["myst_parser"]
# GitHub's names for headings, and no syntax that GitHub does not know, as a comment that begins with %.
myst_heading_anchors = 6
myst_disable_syntax = ["myst_block_break", "myst_line_comment", "myst_role", "myst_target"]
myst_enable_extensions = ["html_image", "strikethrough"]
root_doc = "README"
source_suffix = {".md": "markdown", ".html": "story"}
include_patterns = ["README.md", "docs/**.md", f"{STORY}.html", "steps/**.md", "figures/**.md", "harness/**.md"]
exclude_patterns = ["build"]
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

# What Furo's pages lack. Pictures follow the button for light and dark. They keep their size, at which their words have
# 11 pixels: text is as wide as they are, and on a narrower screen they scroll in a box. No other words are smaller.
# Diffs are red and green. The sidebar shows where in it the page is. No page asks for an icon that is not there.
HEAD = """<link rel="icon" href="data:,">
<style>
html body { color-scheme: light dark; --toc-title-font-size: var(--font-size--small--3) }
html body[data-theme=light] { color-scheme: light }
html body[data-theme=dark] { color-scheme: dark }
html .main { min-width: 0 }
html .content { box-sizing: border-box; width: 54.5em; min-width: 0; max-width: 100%; padding: 0 1em }
html .sidebar-tree .caption { text-transform: none }
html .toc-tree code { font-size: inherit }
html body .highlight .gd { color: var(--color-api-removed) }
html body .highlight .gi { color: var(--color-api-added) }
html article p:has(> img) { overflow-x: auto }
html article img { max-width: max(100%, 837.12px) }
@media (min-width: 82em) { html .sidebar-drawer { width: calc(50% - 27.25em) } html .toc-drawer { padding: 0 } }
@media (max-width: 63em) { html article p:has(> img) { margin-inline: -1em } }
</style>
<script>
addEventListener("DOMContentLoaded", () => {
  const [box, item] = [".sidebar-scroll", ".current-page"].map(each => document.querySelector(each));
  if (!item) return;
  const top = box.scrollTop + item.getBoundingClientRect().top - box.clientHeight / 2;
  box.scrollTo({top, behavior: "instant"});
});
</script>"""


def address(app, page: str, path: str) -> str:
    """Of a file that is no page, in a link on this page."""
    if REPOSITORY:
        return FILES + path
    return os.path.relpath(Path(app.srcdir, path), Path(app.outdir, page).parent)


def links(text: str) -> list[str]:
    """The pages that text of docs/README.md links to."""
    found = re.findall(r"([^()#:\s]+)\.(?:md|html)(?:#[^)\s]*)?(?=\)|$)", text, re.MULTILINE)
    return list(dict.fromkeys(posixpath.normpath(posixpath.join("docs", link)) for link in found))


def sidebar() -> dict[str, list[str]]:
    """Its groups of pages, in the order of docs/README.md."""
    evenings = sources.evenings()
    groups = {heading: [f"steps/{step}/README" for step in steps] for heading, steps in evenings.items()}
    chapters = [link for steps in evenings.values() for needed in steps.values() for link in needed]
    text = (ROOT / f"{CHAPTERS}.md").read_text(encoding="utf-8")
    look_up = re.split(r"(?m)^## ", text.partition("\n## Look something up\n")[2])[0]
    placed = {STORY}
    groups = {"Story": [STORY], **groups, "Side steps": [f"steps/{step}/README" for step in sources.side_steps()]}
    for caption, pages in (("Chapters", [CHAPTERS, *links("\n".join(chapters))]), ("Look up", links(look_up))):
        groups[caption] = [page for page in pages if page not in placed]
        placed |= set(pages)
    return groups


def edit(app, page: str, source: list[str]) -> None:
    """Gives links to a line of a file their full address, as MyST drops the line, and the first page the sidebar."""
    if REPOSITORY:
        here = posixpath.dirname(page)
        source[0] = re.sub(
            r"\]\(([^):#]+)(#L\d+[^)]*)\)",
            lambda link: f"]({FILES}{posixpath.normpath(posixpath.join(here, link[1]))}{link[2]})",
            source[0],
        )
    if page == root_doc:
        app.env.note_dependency(f"{CHAPTERS}.md", docname=page)
        for caption, pages in sidebar().items():
            source[0] += "\n\n```{toctree}\n:hidden:\n:caption: %s\n\n%s\n```\n" % (caption, "\n".join(pages))


def link(app, tree) -> None:
    """Leads links to files that are no pages to these, and links to a step's folder to its lesson."""
    page = app.env.docname
    if page.endswith("/variants"):  # the lessons link to them
        app.env.metadata[page]["orphan"] = True
    for node in list(tree.findall(lambda n: isinstance(n, (addnodes.download_reference, addnodes.pending_xref)))):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), node["reftarget"]))
        file = Path(app.srcdir, path)
        if node["refdomain"] is not None or node["reftarget"].startswith("#") or not file.exists():
            continue  # a page, a heading, or an error that Sphinx reports
        if (file / "README.md").exists():
            node["refdomain"], node["reftarget"], node["reftargetid"] = "doc", f"{path}/README", None
        else:
            node.replace_self(nodes.reference("", "", *node.children, refuri=address(app, page, path)))


class Story(Parser):
    """Of the story's page, what the sidebar, the search and links to its sections need. finish() does the rest."""

    supported = ("story",)

    def parse(self, text: str, document: nodes.document) -> None:
        words = lambda html: " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())  # noqa: E731
        story = nodes.section("", nodes.title("", "Attention to play with"), ids=["story"])
        slugs = {}
        for anchor, title, body in re.findall(r'(?s)<section id="(\w+)".*?<h2.*?>(.*?)</h2>(.*?)</section>', text):
            part = nodes.section("", nodes.title("", words(title)), nodes.paragraph("", words(body)), ids=[anchor])
            slugs[anchor] = (0, anchor, words(title))
            story += part
        document += story
        env = document.settings.env
        env.metadata[env.docname]["myst_slugs"] = slugs


def head(app, page, template, context, tree) -> None:
    context["metatags"] = context.get("metatags", "") + HEAD


def finish(app, error) -> None:
    """Puts the story in its place, with links to pages for links to Markdown, and its words where the search looks for
    them. And gives the first page the name that servers look for."""
    if error:
        return
    out = Path(app.outdir)
    (out / "index.html").write_text((out / f"{root_doc}.html").read_text(encoding="utf-8"), encoding="utf-8")
    text = Path(app.srcdir, f"{STORY}.html").read_text(encoding="utf-8")
    text = re.sub(r'(href="[^":]*)\.md', r"\1.html", text)
    text = re.sub(r'href="(?:\.\./)+(figures/[^"]*)"', lambda found: f'href="{address(app, STORY, found[1])}"', text)
    text = text.replace("<main>", '<main role="main">')
    (out / f"{STORY}.html").write_text(text, encoding="utf-8")


def setup(app) -> None:
    app.add_source_parser(Story)
    app.connect("source-read", edit)
    app.connect("doctree-read", link, priority=400)  # before Sphinx collects the files to copy
    app.connect("html-page-context", head)
    app.connect("build-finished", finish)
