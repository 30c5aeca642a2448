"""Extracts sentences from the mark-up of test sets and of IWSLT's talks.

It keeps the same sentences as fairseq's prepare-iwslt14.sh and prepare-wmt14en2de.sh, and as sacrebleu's test sets.
"""

import html
import re
from collections.abc import Iterable, Iterator

_SEGMENT = re.compile(r"<seg id=[^>]*>(.*)</seg>", re.IGNORECASE)
_NOT_SPOKEN = re.compile("<url>|<talkid>|<keywords>")
_HEADING = re.compile("</?(?:title|description)>")
_NUMBERED = re.compile(r'<(BIBLEBOOK|CHAPTER|VERS) [^>]*?\b[bcv]number="(\d+)"[^>]*>')
_VERSE = re.compile(r"<VERS [^>]*>(.*)</VERS>")
_NOTE = re.compile(r"<DIV>.*?</DIV>|<NOTE>.*?</NOTE>")


def sentences(lines: Iterable[str], name: str) -> Iterator[str]:
    """Sentences of a text; its name tells its form: .sgm and .xml contain segments, train.tags.* IWSLT's talks."""
    if name.endswith((".sgm", ".xml")):
        found = (segment[1].strip() for line in lines if (segment := _SEGMENT.search(line)))
        # IWSLT's talks have ' in the training text and \u2019 in the test text.
        return (text.replace("\u2019", "'") for text in found) if name.endswith(".xml") else found
    if name.rpartition("/")[2].startswith("train.tags."):
        return (_HEADING.sub("", line) for line in lines if not _NOT_SPOKEN.search(line))
    return iter(lines)


def verses(lines: Iterable[str]) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Verses of a Bible in Zefania's XML, one per line, each with its book, chapter and number.

    Notes and marks are removed: [was] is a word that translators have added, <…> a heading.
    """
    place = {}
    for line in lines:
        if numbered := _NUMBERED.search(line):
            place[numbered[1]] = numbered[2]
        if verse := _VERSE.search(line):
            text = html.unescape(_NOTE.sub("", verse[1]))
            yield (place["BIBLEBOOK"], place["CHAPTER"], place["VERS"]), re.sub(r"<.*?>|[\[\]]", "", text).strip()
