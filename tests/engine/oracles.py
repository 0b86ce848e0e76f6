"""Exact recursions and formulas of queueing theory, written independently of the simulator."""

import heapq
import math

import numpy as np


def lindley_waits(arrivals: np.ndarray, services: np.ndarray) -> list[int]:
    """Waiting times of a single server, first come first served (Lindley 1952)."""
    waits, free_at = [], 0
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        start = max(arrival, free_at)
        waits.append(start - arrival)
        free_at = start + service
    return waits


def kiefer_wolfowitz_waits(arrivals: np.ndarray, services: np.ndarray, servers: int) -> list[int]:
    """Waiting times of c servers behind one queue (Kiefer and Wolfowitz 1955)."""
    free_at = [0] * servers
    waits = []
    for arrival, service in zip(arrivals.tolist(), services.tolist(), strict=True):
        start = max(arrival, heapq.heappop(free_at))
        waits.append(start - arrival)
        heapq.heappush(free_at, start + service)
    return waits


def erlang_c(servers: int, offered: float) -> float:
    """Probability of waiting in M/M/c with an offered load in erlangs."""
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return last / (sum(terms) + last)


def mean_wait_mmc(servers: int, arrival_rate: float, service_rate: float) -> float:
    """Mean waiting time of M/M/c."""
    offered = arrival_rate / service_rate
    return erlang_c(servers, offered) / (servers * service_rate - arrival_rate)


def mean_wait_mg1(arrival_rate: float, mean: float, second_moment: float) -> float:
    """Mean waiting time of M/G/1 (Pollaczek and Khinchine)."""
    return arrival_rate * second_moment / 2 / (1 - arrival_rate * mean)
