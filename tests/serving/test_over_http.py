"""A server as people run it: uvicorn in a process of its own, on the loopback."""

import pytest

from tests.serving.load import Load, run_load, served_process

pytest.importorskip("uvicorn")


def test_a_server_answers_all_while_clients_leave_and_parameters_change(tmp_path):
    with served_process("lstm", tmp_path, dim=8, poll=0.05) as server:
        report = run_load(server, Load(clients=8, requests=400, leaving=0.1, swapping=0.02))
        assert (report.wrong, report.lost, report.errors) == (0, 0, 0)
        assert report.answered + report.left == 400
        assert report.left > 0
        assert len(report.versions) > 1
        metrics = server.metrics()
        assert metrics['autobatch_requests_total{outcome="failed"}'] == 0
        assert metrics["autobatch_queue_length"] == 0
        assert server.stop() == 0
