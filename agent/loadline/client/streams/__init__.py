"""Migration of streams between engines that know none, by the gateway that relays them.

The gateway has everything that another engine needs: the token IDs of prompt and output. So no state and no KV cache
moves between workers, which negotiate as always (``client.handover``):

    gateway -> worker   StreamReport   all streams that the gateway has at the worker, four times a second
    worker -> gateway   StopStream     ends a stream at the source, between two chunks; answered by StopReply
    worker -> gateway   ClaimRequest   the claim to the stopped stream, of the destination or again of the source

A gateway that grants a claim continues the stream at the worker that it granted it to. So a worker has nothing to run.
"""

from loadline.client.streams.engine import StreamEngine
from loadline.client.streams.messages import StopReply, StopStream, StreamProgress, StreamReport, StreamSubjects

__all__ = ["StopReply", "StopStream", "StreamEngine", "StreamProgress", "StreamReport", "StreamSubjects"]
