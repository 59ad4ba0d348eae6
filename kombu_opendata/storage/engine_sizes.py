"""The sizes of the engine's records and of the steps of its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSizes:
    """The sizes that bound memory, records and the time of a step; tests make them small.

    Attributes:
        bucket_entries: entries of a full bucket of a queue's messages.
        loaded_buckets: loaded buckets of a queue, above which some are evicted until half of this number remain.
        partitioned_factor: how many times as many messages as these buckets can have a queue with partitions may have
            loaded: a round needs a bucket of each partition, and the summary of a bucket with a single message needs
            four fifths of its memory.
        tail_messages: messages of a partition's cold last bucket whose record is in memory, so that a publish needs no
            read; one with more is full.
        settled_entries: entries of a full bucket of a settled list; with typical commits, rewriting the tail costs less
            than the messages' payloads.
        load_messages: messages that a load from cold buckets reads ahead.
        load_below: ready messages in memory, below which such a load begins.
        load_first: messages that are read first if a delivery waits for them.
        move_messages: messages that one step of a move, a copy or a redrive moves.
        count_buckets: buckets of a settled list whose entries are counted in one read.
        sweep_messages, sweep_pass_messages: messages of the log that a step and a pass of its retention examine.
        running_tasks: running tasks of a session, above which the oldest one counts as lost.
        large_body_bytes, bucket_large_body_bytes: size of an envelope that is written to a payload segment, in a folder
            and in a bucket. A smaller one costs less in the journal; an object is one more request before each commit.
        segment_bytes: size of a payload segment after which the next envelope begins another one.
        own_segment_bytes: size of the smallest envelope, or value of a result, that a thread writes, alone to a
            segment, as the event loop would write it for more than some milliseconds.
        report_bytes: texts of failed tasks in the batch of a checkpoint, above which further ones are cut.
        reserved_bytes: part of the journal that publishes leave to settlements, which free space.
        index_part_rows: rows of the part of the history's index in memory, above which it is written.
        index_lag: rows of the log that may wait for the index while messages flow.
        index_merge_runs: runs of a level that are merged into one.
        index_messages: messages whose headers the indexer has in memory.
        index_reads: metadata records that the indexer reads together.
        index_values: hashes of values that the indexer has in memory; groups of headers may take 64 bytes for each.
        log_rows: stored rows of the history's log in memory.
        log_chunk_rows: messages or attempts that end a chunk of the log.
        log_blocks: blocks of 256 message ids that are recorded for evicted chunks of the log until these are indexed.
        header_messages, header_bytes: the messages, and the bytes of their headers, in a record of kept headers.
        header_records: records of kept headers in the store, above which the open part of the index is written early.
        header_reads: metadata records that are read together to keep headers.
        failure_reads: failures whose facts are read together.
        history_batch: candidates of a search that are read together.
        index_rare: a value with at most this many positions in a part is stored in a run, any other in postings.
        block_rows: metadata records that a routing cursor reads together.
        route_blocks: routes blocks in memory at a time (0.6 KB each); handling all their ids takes a few milliseconds.
        route_reads: routes blocks of one read.
        list_rows: rows of one read of settled lists at startup; some have tens of kilobytes.
        list_parts: parts of the queues whose lists are read at the same time: a request to a bucket takes long.
    """

    bucket_entries: int = 256
    loaded_buckets: int = 48
    partitioned_factor: int = 10
    tail_messages: int = 32
    settled_entries: int = 1024
    load_messages: int = 2048
    load_below: int = 512
    load_first: int = 256
    move_messages: int = 256
    count_buckets: int = 64
    sweep_messages: int = 500
    sweep_pass_messages: int = 100_000
    running_tasks: int = 20_000
    large_body_bytes: int = 64 << 10
    bucket_large_body_bytes: int = 256 << 10
    segment_bytes: int = 16 << 20
    own_segment_bytes: int = 2 << 20
    report_bytes: int = 8 << 20
    reserved_bytes: int = 4 << 20
    index_part_rows: int = 8192
    index_lag: int = 200_000
    index_merge_runs: int = 16
    index_messages: int = 16_384
    index_reads: int = 4096
    index_values: int = 65_536
    log_rows: int = 16_384
    log_chunk_rows: int = 4096
    log_blocks: int = 65_536
    header_messages: int = 4096
    header_bytes: int = 1 << 20
    header_records: int = 16
    header_reads: int = 256
    failure_reads: int = 100
    history_batch: int = 1000
    index_rare: int = 4
    block_rows: int = 4096
    route_blocks: int = 256
    route_reads: int = 250
    list_rows: int = 16
    list_parts: int = 16


SIZES = EngineSizes()
