"""
A deterministic simulation of workers, network and Redis around the real locking code.

The package's own bookkeeping, renewal loop, sweep, recovery and start and finish rules run unchanged; the clock, the
greenlets, the network and the server are models. One seed makes one history, again and again the same.
"""
