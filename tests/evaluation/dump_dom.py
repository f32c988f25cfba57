"""Print the document that a browser makes of a page: `python dump_dom.py file:///page.html`."""

from __future__ import annotations

import sys

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

SETTLED = 1000
"""Milliseconds between the load and the dump."""


def main(address: str) -> None:
    application = QApplication(["dump_dom", "--no-sandbox", "--disable-gpu"])
    view = QWebEngineView()
    view.resize(1280, 900)

    def dump(document: str) -> None:
        print(document)
        application.quit()

    def loaded(done: bool) -> None:
        if not done:
            sys.exit("the page did not load")
        QTimer.singleShot(SETTLED, lambda: view.page().toHtml(dump))

    view.loadFinished.connect(loaded)
    view.load(QUrl(address))
    view.show()
    application.exec()


if __name__ == "__main__":
    main(sys.argv[1])
