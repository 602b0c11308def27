"""The JSON API: answers are those of the detector, errors are each image's own, and nothing is a crash."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

import deltaenergy as de
from deltaenergy.data.items import ImageItem
from deltaenergy.scores.registry import DEFAULT_SCORE
from deltaenergy.serve.guard import Keys
from deltaenergy.serve.server import Limits
from tests.serve.conftest import CLASSES, PICTURES, make_client, png
from tests.serve.process import BOUNDARY, form


def files(pictures: list[bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f"{i}.png", data)) for i, data in enumerate(pictures)]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def assert_as_predicted(images: list[dict[str, Any]], detector: de.Detector, pictures: list[bytes]) -> None:
    for found, expected in zip(images, detector.predict(pictures), strict=True):
        assert (found["label"], found["is_ood"]) == (expected.label, expected.is_ood)
        assert found["verdict"] == ("none of these" if expected.is_ood else "known")
        assert found["score"] == pytest.approx(expected.score, rel=1e-5)
        assert found["confidence"] == pytest.approx(expected.confidence, rel=1e-4)
        assert found["p_value"] == pytest.approx(expected.p_value, abs=0.04)  # one rank, if rounding moves it
        assert found["threshold"] == detector.threshold


class TestVerdicts:
    @pytest.mark.parametrize("name", ["colours", "letters"])
    def test_files_are_judged_as_the_detector_does(self, client: Any, detectors: Any, name: str) -> None:
        answer = client.post("/v1/verdicts", data={"detector": name}, files=files(PICTURES))
        assert answer.status_code == 200
        body = answer.json()
        assert (body["detector"], body["score"]) == (name, detectors[name].score.spec)
        assert [image["path"] for image in body["images"]] == [f"{i}.png" for i in range(12)]
        assert {image["verdict"] for image in body["images"]} == {"known", "none of these"} or name == "letters"
        assert_as_predicted(body["images"], detectors[name], PICTURES)

    def test_the_closest_classes(self, client: Any) -> None:
        body = client.post("/v1/verdicts", data={"detector": "colours", "top_k": "2"}, files=files(PICTURES[:3])).json()
        for image in body["images"]:
            assert image["top"][0]["label"] == image["label"]
            assert len(image["top"]) == 2
            assert image["top"][0]["confidence"] == pytest.approx(image["confidence"], rel=1e-4)

    def test_features(self, client: Any, detectors: Any, lite: Any) -> None:
        features = lite.encode_images(PICTURES)
        body = client.post("/v1/features", json={"detector": "letters", "features": features.tolist()}).json()
        assert_as_predicted(body["images"], detectors["letters"], PICTURES)

    def test_an_image_that_cannot_be_read_has_its_own_error(self, client: Any, detectors: Any) -> None:
        sent = [PICTURES[0], b"not a picture", PICTURES[1][:60], b"", PICTURES[1]]
        answer = client.post("/v1/verdicts", data={"detector": "colours"}, files=files(sent))
        assert answer.status_code == 200
        images = answer.json()["images"]
        assert [image["error"] is None for image in images] == [True, False, False, False, True]
        assert images[1]["label"] is None and images[1]["is_ood"] is None
        assert_as_predicted([images[0], images[4]], detectors["colours"], [PICTURES[0], PICTURES[1]])

    def test_no_readable_image_is_422_with_the_reasons(self, client: Any) -> None:
        answer = client.post("/v1/verdicts", data={"detector": "colours"}, files=files([b"x"]))
        assert answer.status_code == 422
        assert answer.json()["detail"][0]["path"] == "0.png"
        assert "not an image" in answer.json()["detail"][0]["error"]

    def test_a_bomb_is_refused_by_its_header(self, detectors: Any, lite: Any) -> None:
        with make_client(detectors, lite, Limits(megapixels=0.001)) as small:
            answer = small.post("/v1/verdicts", data={"detector": "colours"}, files=files([png(0, 40), png(1, 20)]))
        first, second = answer.json()["images"]
        assert "40 × 40 pixels; the limit is 0.001 megapixels" in first["error"]
        assert second["error"] is None

    @pytest.mark.parametrize(
        ("request_", "status", "said"),
        [
            ({"data": {"detector": "colors"}, "files": files([b"x"])}, 404, "There are: colours, letters"),
            ({"files": files([b"x"])}, 404, "detector is missing"),
            ({"data": {"detector": "colours"}}, 422, "files"),
            ({"data": {"detector": "colours", "files": "text"}}, 422, "files"),
            ({"data": {"detector": "colours"}, "files": files([b"x"])}, 422, "files"),
            ({"data": {"detector": "colours"}, "files": files([b"x"] * 65)}, 413, "files"),
            ({"data": {"detector": "colours"}, "files": files([b"x"] * 1001)}, 400, "files"),
            ({"content": b"{", "headers": {"content-type": "application/json"}}, 422, "files"),
            ({"content": b"x" * 9, "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
            *(
                ({"data": {"detector": "colours", "top_k": wrong}, "files": files([b"x"])}, 422, "top_k")
                for wrong in ("0", "1001", "x", "1.5", "9" * 5000)
            ),
        ],
    )
    def test_a_wrong_request_is_told_what_is_wrong(self, client: Any, request_: Any, status: int, said: str) -> None:
        self.check(client.post("/v1/verdicts", **request_), status, said)

    @pytest.mark.parametrize(
        ("body", "status", "said"),
        [
            (b"{", 422, "body"),
            (b"[" * 100_000, 400, "body"),
            (b'{"features": 1e', 422, "body"),
            (b'{"features": [[1]], "top_k": ' + b"9" * 5000 + b"}", 400, "body"),
            ({"features": 3}, 422, "features"),
            ({"features": []}, 422, "features"),
            ({"features": [[1.0]] * 10_001}, 413, "features"),
            ({"features": [[1.0, 2.0]]}, 422, "512"),
            ({"features": [[1.0], [1.0, 2.0]]}, 422, "features"),
            ({"features": [[1.0]], "top_k": 0}, 422, "top_k"),
            ({"features": [[1.0]], "detector": "colors"}, 404, "There are: colours, letters"),
        ],
    )
    def test_wrong_features_are_told_what_is_wrong(self, client: Any, body: Any, status: int, said: str) -> None:
        text = body if isinstance(body, bytes) else json.dumps({"detector": "colours", **body}).encode()
        answer = client.post("/v1/features", content=text, headers={"content-type": "application/json"})
        self.check(answer, status, said)

    @staticmethod
    def check(answer: Any, status: int, said: str) -> None:
        assert answer.status_code == status, answer.text
        assert said in answer.json()["error"]


class TestLimits:
    def test_too_many_files(self, detectors: Any, lite: Any) -> None:
        with make_client(detectors, lite, Limits(files=2)) as small:
            form = small.post("/v1/verdicts", data={"detector": "colours"}, files=files(PICTURES[:3]))
            image = {"name": "image", "shape": [3], "datatype": "BYTES", "data": [b64(PICTURES[0])] * 3}
            tensor = small.post("/v2/models/colours/infer", json={"inputs": [image]})
            assert (form.status_code, tensor.status_code) == (413, 413)

    def test_too_large_a_body_is_refused_with_and_without_its_length(self, detectors: Any, lite: Any) -> None:
        with make_client(detectors, lite, Limits(body_mb=0.01)) as small:
            body, kind = form([b"x" * 20_000]), {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
            told = small.post("/v1/verdicts", content=body, headers=kind)
            untold = small.post("/v1/verdicts", content=iter([body[:6_000], body[6_000:]]), headers=kind)
        assert (told.status_code, untold.status_code) == (413, 413)
        assert "larger than 0.01 MB" in untold.json()["error"]

    def test_what_does_not_fit_beside_others_is_429(self, detectors: Any, lite: Any) -> None:
        with make_client(detectors, lite, Limits(files=4, queue=4)) as small:
            small.app.app.state.engine.under_way = 3
            answer = small.post("/v1/verdicts", data={"detector": "colours"}, files=files(PICTURES[:2]))
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "1"
            small.app.app.state.engine.under_way = 2
            assert (
                small.post("/v1/verdicts", data={"detector": "colours"}, files=files(PICTURES[:2])).status_code == 200
            )
            assert small.app.app.state.engine.under_way == 2

    def test_no_answer_in_time_is_504(self, detectors: Any, lite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        import time

        from deltaenergy.serve import engine

        monkeypatch.setattr(engine, "encode_and_predict", lambda pictures: time.sleep(1.5))
        with make_client(detectors, lite, Limits(seconds=0.3)) as slow:
            answer = slow.post("/v1/verdicts", data={"detector": "colours"}, files=files(PICTURES[:1]))
        assert answer.status_code == 504
        assert "0.3 seconds" in answer.json()["error"]


class TestClassify:
    def test_names_of_the_request(self, client: Any, lite: Any) -> None:
        names = ["sky", "grass", "wall"]
        body = client.post("/v1/classify", data={"classes": " sky,grass , wall"}, files=files(PICTURES)).json()
        expected = de.ZeroShotClassifier(lite, names).similarities(PICTURES).argmax(axis=1)
        assert [image["label"] for image in body["images"]] == [names[k] for k in expected]
        detector = de.Detector.from_names(de.ZeroShotClassifier(lite, names))
        assert body["threshold"] == detector.threshold and body["guarantee"] == str(detector.guarantee)
        told = ("is_ood", "verdict", "answer", "more_like", "p_value")
        assert [[image[name] for name in told] for image in body["images"]] == [
            [getattr(one, name) for name in told] for one in detector.predict(PICTURES)
        ]
        chosen = client.post("/v1/classify", data={"classes": names, "score": "mcm"}, files=files(PICTURES[:1])).json()
        assert chosen["threshold"] is None and chosen["images"][0]["is_ood"] is None
        again = client.post("/v1/classify", data={"classes": names}, files=files(PICTURES[:1])).json()
        assert again["images"][0]["score"] == pytest.approx(body["images"][0]["score"], rel=1e-5)

    def test_a_name_never_stands_for_a_file(self, client: Any, tmp_path: Path) -> None:
        (tmp_path / "names.txt").write_text("secret\n")
        path = str(tmp_path / "names.txt")
        body = client.post("/v1/classify", data={"classes": path}, files=files(PICTURES[:1])).json()
        assert body["images"][0]["label"] == path

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"classes": " , "}, "classes"),
            ({"classes": "x," * 1001}, "1,001 names"),
            ({"classes": "x" * 201}, "more than 200 characters"),
            ({"score": "no-such-score"}, "no-such-score"),
            ({"score": "multi-delta-energy"}, "score"),
            ({"score": "neglabel"}, "score"),
            ({"score": f"{DEFAULT_SCORE}(words=/etc/passwd)"}, "score"),
            ({"template": "an {}"}, "template"),
            ({"template": "without a place"}, "{}"),
        ],
    )
    def test_what_cannot_be_asked(self, client: Any, changes: Any, said: str) -> None:
        answer = client.post("/v1/classify", data={"classes": "dog,cat", **changes}, files=files(PICTURES[:1]))
        assert answer.status_code == 422
        assert said in answer.json()["error"]

    def test_only_so_many_lists_are_kept(self, detectors: Any, lite: Any) -> None:
        with make_client(detectors, lite, Limits(class_lists=2)) as small:
            for number in range(4):
                names = {"classes": f"a{number},b"}
                assert small.post("/v1/classify", data=names, files=files(PICTURES[:1])).status_code == 200
            assert len(small.app.app.state.engine._lists) == 2


def test_a_calibrated_detector_comes_as_a_zip(client: Any, lite: Any, tmp_path: Path) -> None:
    known = [png(seed) for seed in range(40, 60)]
    form = {"classes": ",".join(CLASSES), "keep": "0.9", "score": "mcm"}
    answer = client.post("/v1/calibrate", data=form, files=files(known))
    assert answer.status_code == 200, answer.text
    told = json.loads(answer.headers["x-deltaenergy"])
    assert (told["images"], told["score"]) == (20, "mcm")
    assert any("does not seem to know these classes" in text for text in told["warnings"])
    zipfile.ZipFile(io.BytesIO(answer.content)).extractall(tmp_path)
    loaded = de.Detector.load(tmp_path / "detector", model=lite)
    expected = de.Detector(de.ZeroShotClassifier(lite, CLASSES), "mcm").calibrate(known, 0.9)
    assert loaded.threshold == pytest.approx(expected.threshold, rel=1e-6)
    assert loaded.classifier.classes == tuple(CLASSES)
    for wrong in ({"keep": "2"}, {"keep": "x"}, {"score": "neglabel"}, {"classes": ""}):
        assert client.post("/v1/calibrate", data={**form, **wrong}, files=files(known[:2])).status_code == 422


class TestInferenceProtocol:
    def test_health_and_metadata(self, client: Any) -> None:
        assert client.get("/v2/health/live").json() == {"live": True}
        assert client.get("/v2/health/ready").json() == {"ready": True}
        model = client.get("/v2/models/colours").json()
        assert [one["name"] for one in model["inputs"]] == ["image", "features"]
        assert client.get("/v2/models/other").status_code == 404
        assert client.get("/v2/models/colours/ready").json()["ready"] is True

    def test_infer(self, client: Any, detectors: Any, lite: Any) -> None:
        image = {"name": "image", "shape": [2], "datatype": "BYTES", "data": [b64(PICTURES[0]), b64(PICTURES[1])]}
        body = client.post("/v2/models/colours/infer", json={"id": "7", "inputs": [image]}).json()
        found = {output["name"]: output["data"] for output in body["outputs"]}
        expected = detectors["colours"].predict(PICTURES[:2])
        assert body["id"] == "7" and found["label"] == [one.label for one in expected]
        assert found["score"] == pytest.approx([one.score for one in expected], rel=1e-5)
        features = lite.encode_images(PICTURES[:2])
        flat = {"name": "features", "shape": [2, 512], "datatype": "FP32", "data": features.flatten().tolist()}
        asked = {"inputs": [flat], "outputs": [{"name": "is_ood"}]}
        body = client.post("/v2/models/colours/infer", json=asked).json()
        assert [output["name"] for output in body["outputs"]] == ["is_ood"]
        assert body["outputs"][0]["data"] == [one.is_ood for one in expected]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"shape": [3]},
            {"datatype": "FP32"},
            {"name": "picture"},
            {"data": [1, 2]},
            {"name": "features", "shape": [2, 512]},
            {"name": "features", "shape": [1, 2], "datatype": "FP32", "data": ["a", "b"]},
        ],
    )
    def test_wrong_tensors(self, client: Any, wrong: Any) -> None:
        given = {"name": "image", "shape": [2], "datatype": "BYTES", "data": ["", ""], **wrong}
        assert client.post("/v2/models/colours/infer", json={"inputs": [given]}).status_code == 422


class TestSafety:
    def test_keys(self, detectors: Any, lite: Any) -> None:
        with make_client(detectors, lite, keys=Keys(["right-key-of-some-length"])) as locked:
            ask = locked.get
            assert ask("/v1/detectors").status_code == 401
            assert ask("/metrics").status_code == 401
            assert ask("/v1/detectors", headers={"authorization": "Bearer wrong"}).status_code == 401
            assert ask("/v1/detectors", headers={"authorization": "Bearer right-key-of-some-length"}).status_code == 200
            assert ask("/v1/detectors", headers={"x-api-key": "right-key-of-some-length"}).status_code == 200
            assert ask("/v2/health/live").status_code == 200
            assert "right-key" not in repr(vars(locked.app.keys))

    def test_no_cors_unless_asked(self, client: Any, detectors: Any, lite: Any) -> None:
        origin = {"origin": "http://elsewhere.example"}
        assert "access-control-allow-origin" not in client.get("/v1/detectors", headers=origin).headers
        with make_client(detectors, lite, cors=("http://elsewhere.example",)) as open_:
            headers = open_.get("/v1/detectors", headers=origin).headers
            assert headers["access-control-allow-origin"] == "http://elsewhere.example"

    @pytest.mark.parametrize("path", ["/", "/docs", "/v1/detectors", "/nowhere"])
    def test_policies(self, client: Any, path: str) -> None:
        policy = client.get(path).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy

    def test_no_path_of_the_server_is_told(self, client: Any) -> None:
        for path in ("/v1/detectors", "/v1/settings", "/openapi.json", "/v2", "/nowhere", "/v1/samples/99"):
            assert "/src/" not in client.get(path).text and str(Path.cwd()) not in client.get(path).text

    def test_the_pages_ask_for_nothing_elsewhere(self, client: Any) -> None:
        for path in ("/", "/docs"):
            text = client.get(path).text
            assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text


def test_metrics_count_requests_batches_and_verdicts(detectors: Any, lite: Any) -> None:
    with make_client(detectors, lite) as fresh:
        fresh.post("/v1/verdicts", data={"detector": "colours"}, files=files(PICTURES))
        fresh.get("/nowhere")
        lines = dict(line.rsplit(" ", 1) for line in fresh.get("/metrics").text.splitlines() if line[0] != "#")
    assert lines['deltaenergy_requests_total{route="/v1/verdicts",status="200"}'] == "1.0"
    assert lines['deltaenergy_requests_total{route="other",status="404"}'] == "1.0"
    assert float(lines["deltaenergy_batch_images_sum"]) == 12
    rejected = sum(verdict.is_ood for verdict in detectors["colours"].predict(PICTURES))
    assert float(lines['deltaenergy_verdicts_total{detector="colours",verdict="none of these"}']) == rejected


def test_the_description_names_every_route(client: Any) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/verdicts", "/v1/classify", "/v1/detectors", "/v1/calibrate", "/v2/models/{name}/infer"} <= set(paths)
    kinds = {path: set(route["post"]["requestBody"]["content"]) for path, route in paths.items() if "post" in route}
    as_json = {path for path, found in kinds.items() if found == {"application/json"}}
    assert as_json == {"/v1/features", "/v2/models/{name}/infer"}


def test_classes_with_thresholds_of_their_own(lite: Any) -> None:
    classifier = de.ZeroShotClassifier(lite, CLASSES)
    known = [ImageItem(str(seed), png(seed), CLASSES[seed % 4]) for seed in range(300, 420)]
    detector = de.Detector(classifier, "mcm").calibrate(known, 0.5, confidence=None, by_class=True, batch_size=8)
    own = detector.class_thresholds
    assert len(set(own.values())) > 1
    with make_client({"own": detector}, lite) as made:
        body = made.post("/v1/verdicts", files=files(PICTURES)).json()
    assert_as_predicted([{**image, "threshold": detector.threshold} for image in body["images"]], detector, PICTURES)
    expected = [own.get(image["label"], detector.threshold) for image in body["images"]]
    assert [image["threshold"] for image in body["images"]] == expected and set(expected) & set(own.values())
    assert body["guarantee"] == str(detector.guarantee)


def test_the_default_score_is_the_command_line_s(client: Any) -> None:
    assert client.get("/v1/settings").json()["default_score"] == DEFAULT_SCORE


def test_more_known_images_calibrate_than_a_request_may_judge(detectors: Any, lite: Any) -> None:
    with make_client(detectors, lite, Limits(files=2)) as small:
        form = {"classes": ",".join(CLASSES), "score": "mcm"}
        answer = small.post("/v1/calibrate", data=form, files=files(PICTURES[:5]))
    assert answer.status_code == 200
    assert json.loads(answer.headers["x-deltaenergy"])["images"] == 5


def test_the_page_leaves_statistics_to_the_service(client: Any) -> None:
    page = client.get("/").text
    assert "reference.length + 1" not in page, "a p-value"
    assert "0.95 * reference.length" not in page, "a threshold, which the downloaded detector does not have"
