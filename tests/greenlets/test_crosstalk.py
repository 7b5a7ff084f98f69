"""Greenlets that start and finish jobs during ticks never read each other's replies (case 44, 500 greenlets)."""

from __future__ import annotations

import gevent

from echomq_plugin import LockOptions, attach

GREENLETS = 500


def test_500_greenlets_that_start_and_finish_jobs_during_ticks_get_their_own_answers(server, client, pm, recorder):
    # Three ticks at least pass. The call limit is wide: 500 greenlets share two cores with whatever else runs.
    options = LockOptions(lock_duration=30_000, lock_renew_time=800, call_limit_ms=10_000, stalled_interval=300)
    plugin = attach(pm, server.url, "mail", options)
    plugin.start()
    fences: list[int] = []
    held = plugin.job_start("mail", "all along")

    def work(number: int) -> None:
        rounds = 0
        while rounds < 2 or len(recorder.batches) < 3:
            rounds += 1
            with plugin.job(f"{number}") as lock:
                fences.append(lock.fence)
                gevent.sleep(0.05 if rounds < 2 else 0.4)
                assert lock.confirm()

    workers = [gevent.spawn(work, number) for number in range(GREENLETS)]
    gevent.joinall(workers, timeout=100, raise_error=True)
    assert all(worker.successful() for worker in workers)
    assert len(fences) == len(set(fences)) >= 2 * GREENLETS
    assert recorder.lost == []
    assert [str(error) for error in recorder.failed + recorder.check_failed] == []
    assert plugin.job_finish(held, "completed").value == "released"
    assert plugin.stop(timeout_ms=1000)
    assert client.keys("emq:mail:*:lock") == []
