"""The files of a page: few, small, read once and kept compressed."""

import gzip
import mimetypes
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Assets:
    """The files in the folder `files` of some packages, by their names; of the same name, the last package's counts."""

    def __init__(self, *packages: str) -> None:
        self._content: dict[str, bytes] = {}
        for package in packages:
            for file in (files(package) / "files").iterdir():
                self._content[file.name] = file.read_bytes()
        self._packed = {name: gzip.compress(content, mtime=0) for name, content in self._content.items()}

    def text(self, name: str) -> str:
        """A file as text."""
        return self._content[name].decode()

    async def serve(self, request: Request) -> Response:
        """The file that the path names."""
        name = request.path_params["name"]
        if name not in self._content or name.endswith(".html"):
            return PlainTextResponse("no such file", 404)
        return self.answer(request, name)

    def answer(self, request: Request, name: str) -> Response:
        """A file, compressed if the browser can do with that."""
        suffix = "." + name.rpartition(".")[2]
        kind = _TYPES.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(self._packed[name], media_type=kind, headers={"Content-Encoding": "gzip"})
        return Response(self._content[name], media_type=kind)
