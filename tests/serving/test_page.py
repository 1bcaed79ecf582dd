"""The code of docs/serving.md runs as it is shown."""

import asyncio
import pathlib
import re
import sys
import types

import httpx
import numpy as np

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "serving.md"
IN_PROCESS, OVER_HTTP = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "uvicorn", types.ModuleType("uvicorn"))
    (tmp_path / "page.py").write_text(IN_PROCESS + OVER_HTTP)
    names = {"__name__": "page"}
    exec(compile(IN_PROCESS + OVER_HTTP, str(tmp_path / "page.py"), "exec"), names)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://test") as client:
            right = await client.post("/", content="[3, 92, 14]")
            wrong = await client.post("/", content='[3, "x"]')
        names["app"].batcher.close()
        return right.json(), wrong.json()

    tags, error = asyncio.run(ask())
    assert tags == names["tagger"].__wrapped__(np.array([3, 92, 14]), names["weights"](0)).tolist()
    shown = re.findall(r"^\$ curl localhost:8000 .*\n(.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert str(tags).replace(" ", "") == shown[0]
    assert error["error"]["message"] in shown[1]
