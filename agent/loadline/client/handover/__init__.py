"""Handover of running requests between workers, without I/O: the caller provides the transport and the clock.

``RequestMigrator`` is the entry point of a worker, ``RequestOwners`` that of a frontend, ``HandoverBus`` a transport.

Messages of one handover (``->``; each has an answer):

    source -> destination   RoomRequest      asks for room for its KV cache, and for a slot
    source                  copies the KV cache while the request runs, then stops the request
    source -> destination   HandoverRequest  its state, and the hop that the destination must claim
    destination -> frontend ClaimRequest     the frontend decides who owns the request
    source -> frontend      ClaimRequest     only if the destination's answer is negative or missing

Until the request is stopped, every failure leaves it running at the source. Afterwards the frontend's answer decides.
"""

from loadline.client.handover.bus import HandoverBus, HandoverTransport
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandedRequest
from loadline.client.handover.migrator import RequestMigrator
from loadline.client.handover.ownership import RequestOwner, RequestOwners
from loadline.client.handover.source import StoppedRequest

__all__ = [
    "HandedRequest",
    "HandoverBus",
    "HandoverTransport",
    "HeldRequests",
    "RequestMigrator",
    "RequestOwner",
    "RequestOwners",
    "StoppedRequest",
]
