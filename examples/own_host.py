"""
A queue library of your own, with a plugin manager and a project name of its own, and the library attached to it.

    python examples/own_host.py [redis://localhost:6379]

Without an argument, and without REDIS_URL in the environment, it starts a server of its own (the extra `embedded`).

`Courier` below stands for your library. It knows three things of this one: two hooks that it calls (start, finish), and
two errors that mean "not now". Everything else is up to whoever attaches.
"""

import contextlib
import os
import sys

import gevent
import pluggy
import redis

from echomq_plugin import LockHeldError, LockOptions, StartUndecidedError, attach, hookimpl_for

hookspec = pluggy.HookspecMarker("courier")
hookimpl = pluggy.HookimplMarker("courier")


class CourierHooks:
    """The host's own hooks; the library leaves them alone."""

    @hookspec
    def courier_delivered(self, parcel):
        """Tell that a parcel was delivered."""


class Courier:
    """A small queue library: parcels wait in a list, one is delivered after the other."""

    def __init__(self, url, pm):
        self.pm = pm
        self.pm.add_hookspecs(CourierHooks)
        self.redis = redis.Redis.from_url(url, decode_responses=True)

    def send(self, *parcels):
        """Enqueue parcels."""
        self.redis.lpush("courier:parcels", *parcels)

    def work_off(self):
        """Deliver until nothing waits."""
        while parcel := self.redis.lmove("courier:parcels", "courier:on-the-road", "RIGHT", "LEFT"):
            try:
                lock = self.pm.hook.echomq_job_start(
                    queue="courier", job_id=parcel, delivery=None, payload=parcel, token=None
                )
            except LockHeldError as held:
                # Somebody else delivers it at this moment. Never drop it: it may be a second order of the same thing.
                print(f"{parcel}: on the road already, tried again in {held.retry_in_ms} ms")
                gevent.sleep(held.retry_in_ms / 1000)
                self.put_back(parcel)
                continue
            except StartUndecidedError:
                self.put_back(parcel)
                raise
            self.deliver(parcel)
            # The result only while the lock is ours, and the lock only after the result.
            if lock.confirm():
                self.redis.lrem("courier:on-the-road", 1, parcel)
                self.pm.hook.courier_delivered(parcel=parcel)
            self.pm.hook.echomq_job_finish(lock=lock, outcome="completed")

    def deliver(self, parcel):
        """Do the work."""
        gevent.sleep(0.3)

    def put_back(self, parcel):
        """Let a parcel wait again; one that is no longer on the road was delivered or put back before."""
        if self.redis.lrem("courier:on-the-road", 1, parcel):
            self.redis.lpush("courier:parcels", parcel)


def notices(pm, courier):
    """Return the app's plugin: what it does with the host's events and with the library's."""

    class Notices:
        @hookimpl
        def courier_delivered(self, parcel):
            print(f"{parcel}: delivered")

        @hookimpl_for(pm)
        def echomq_job_stalled(self, job):
            print(f"{job.job_id}: its worker died, {job.stalled_count} time(s) so far")
            courier.put_back(job.payload)
            return True

    return Notices()


def main(url):
    """Deliver three parcels, of which one is held elsewhere and one belongs to a worker that died."""
    pm = pluggy.PluginManager("courier")
    courier = Courier(url, pm)
    pm.register(notices(pm, courier))
    # Short, so that there is something to see: the usual lock lives for 30 s.
    options = LockOptions(lock_duration=1_500, stalled_interval=1_500)
    plugin = attach(pm, url, queue="courier", options=options)

    # A worker that dies in the middle of a delivery leaves a parcel on the road, and a lock that nobody renews.
    dead = attach(pluggy.PluginManager("courier"), url, queue="courier", options=options)
    dead.job_start("courier", "vase", payload="vase")
    dead.manager.stop()
    courier.redis.lpush("courier:on-the-road", "vase")

    # And somebody delivers the book for another half second.
    courier.redis.set("emq:courier:book:lock", "somebody", px=500)

    plugin.start()
    courier.send("book", "lamp")
    courier.work_off()
    while not courier.redis.llen("courier:parcels"):
        gevent.sleep(0.05)
    courier.work_off()
    plugin.stop(timeout_ms=5_000)
    dead.stop(timeout_ms=0)
    courier.redis.close()


@contextlib.contextmanager
def some_server():
    """Yield the URL of a server: from the command line, from the environment, or of one that is started for this."""
    url = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("REDIS_URL")
    if url:
        yield url
    else:
        from echomq_plugin.embedded import EmbeddedServer

        with EmbeddedServer() as server:
            yield server.url


if __name__ == "__main__":
    with some_server() as some_url:
        main(some_url)
