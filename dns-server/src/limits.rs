//! All limits of the server and the defaults of its flags, with their units and reasons. Durations
//! state their unit, sizes are in bytes.
//!
//! docs/reference.md lists them; `tests/tools/limits.sh --write` writes that list.

/// Default values of the command line's flags.
pub(crate) mod flags {
    /// Default of `--snapshot-max-age`: greatest age at which a snapshot is used.
    pub(crate) const SNAPSHOT_MAX_AGE: &str = "1h";

    /// Default of `--zone`: zone that services have their names in.
    pub(crate) const ZONE: &str = "multinet.cluster.local";

    /// Default of `--ttl`: time to live, in seconds, of services that set none. CoreDNS caches for
    /// as long.
    pub(crate) const TTL: u32 = 5;

    /// Default of `--tcp-max-connections`: TCP and TLS connections. At this limit, new ones replace
    /// idle ones.
    pub(crate) const TCP_MAX_CONNECTIONS: &str = "20000";

    /// Default of `--udp-payload-size`: largest UDP payload that is sent and announced, in bytes.
    /// The value is that of DNS flag day 2020: what fits into IPv6's minimum MTU of 1280.
    pub(crate) const UDP_PAYLOAD: u16 = 1232;

    /// Default of `--lameduck`: time to answer after SIGTERM while endpoints are removed from load
    /// balancers.
    pub(crate) const LAMEDUCK: &str = "5s";
}

/// Limits of the process as a whole.
pub(crate) mod process {
    use std::time::Duration;

    /// Time limit for finishing connections and file writes after the lameduck period.
    pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

    /// File descriptors kept for everything but listeners and client connections: the API server,
    /// files, probes.
    pub(crate) const OTHER_FILES: usize = 128;
}

/// Limits on the records of answers, and on the parts of queries.
pub(crate) mod answers {
    /// Largest number of topology zones of a service that have names. Clusters have a few.
    pub(crate) const MAX_ZONES: usize = 32;

    /// Largest number of PTR records that one address has.
    pub(crate) const MAX_POINTERS: usize = 16;

    /// Longest data of a TXT record, in bytes. A dozen character strings are far shorter.
    pub(crate) const MAX_TXT: usize = 8 << 10;

    /// Largest number of questions that are read before a packet with more than one question is
    /// rejected.
    pub(crate) const MAX_QUESTIONS: u16 = 2;

    /// Largest number of records that are read: an SOA for IXFR or NOTIFY, an OPT, a signature, and
    /// one to spare. In a packet with more records, no signature is looked for.
    pub(crate) const MAX_RECORDS: u32 = 4;
}

/// Ages of DNS cookies (RFC 9018 §4.3), in seconds.
pub(crate) mod cookies {
    /// Age up to which a server cookie is valid, in seconds (RFC 9018 §4.3).
    pub(crate) const LIFETIME: i32 = 60 * 60;

    /// Time, in seconds, by which a cookie from a replica whose clock is ahead may lie in the
    /// future (RFC 9018 §4.3).
    pub(crate) const AHEAD: i32 = 5 * 60;

    /// Age up to which a server cookie is sent back unchanged, in seconds (RFC 9018 §4.3).
    pub(crate) const RENEWAL: i32 = 30 * 60;
}

/// Limits of the UDP listeners.
pub(crate) mod udp {
    use std::time::Duration;

    /// Buffer size in bytes for datagrams that wait for a worker, and for replies that wait for the
    /// network. The kernel caps it at `net.core.rmem_max` and `wmem_max`.
    pub(crate) const UDP_BUFFER: usize = 4 << 20;

    /// Buffer size for one query in bytes. A longer datagram is cut off; no valid query is as long.
    pub(crate) const DATAGRAM: usize = 4096;

    /// Largest reply in bytes that may share a message: what fits into IPv6's minimum MTU of 1280.
    /// A longer reply may need fragmentation, which GSO does not allow.
    pub(crate) const MAX_SEGMENT: u16 = 1232;

    /// Longest wait for room in the socket's send buffer. The worker answers no queries meanwhile.
    pub(crate) const SEND_TIME: Duration = Duration::from_millis(20);

    /// Pause after an error of the socket, as opposed to an error about one datagram.
    pub(crate) const FAILURE_PAUSE: Duration = Duration::from_millis(100);
}

/// Times after which a UDP worker counts as overloaded, and as recovered.
pub(crate) mod overload {
    use std::time::Duration;

    /// Longest wait of a query under overload. The client sees about 2 ms: this wait, the time to
    /// answer its batch, and some for the network, also on a slow machine.
    pub(crate) const TARGET: Duration = Duration::from_micros(1600);

    /// Time for which all queries must have been late before late ones are dropped.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

    /// Time for which no query must have been late before all are answered again. Under overload
    /// some query is late every few milliseconds. The value is well below the scheduler's period of
    /// 100 ms, so that a worker that is merely descheduled at times does not seem overloaded for
    /// good.
    pub(crate) const CALM: Duration = Duration::from_millis(20);

    /// Time for which batches must have been full before arrival times are asked for.
    pub(crate) const FULL: Duration = Duration::from_millis(20);

    /// Time for which no batch must have been full before arrival times are no longer asked for.
    pub(crate) const SLACK: Duration = Duration::from_secs(1);
}

/// Limits of TCP and TLS connections.
pub(crate) mod tcp {
    use std::time::Duration;

    /// Time limit for a silent connection. CoreDNS reuses connections for 10 s. It should close
    /// them first, or it would lose queries that cross the server's close.
    pub(crate) const IDLE_TIME: Duration = Duration::from_secs(30);

    /// Time for which a connection without queries keeps its buffers' memory.
    pub(crate) const QUIET_TIME: Duration = Duration::from_secs(1);

    /// Time limit for a message from a client to arrive, from its first byte on.
    pub(crate) const MESSAGE_TIME: Duration = Duration::from_secs(10);

    /// Time limit for a client to take the replies that wait for it at one moment.
    pub(crate) const WRITE_TIME: Duration = Duration::from_secs(10);

    /// Time limit for the client to close its side after the server has closed.
    pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(1);

    /// Time limit for a TLS handshake.
    pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

    /// Limit on handshakes at a time. An RSA signature with 4096 bits takes some 5 ms, so the last
    /// of these handshakes gets its turn after a second or two.
    pub(crate) const MAX_HANDSHAKES: usize = 256;

    /// Memory in bytes that all connections together may hold for unfinished queries and unread
    /// replies.
    pub(crate) const MAX_HELD: usize = 64 << 20;

    /// Memory in bytes that every connection may hold even when the budget is spent.
    pub(crate) const GUARANTEED: usize = 4 << 10;

    /// Bytes waiting to be written at which the connection stops reading and answering.
    pub(crate) const HIGH_WATER: usize = 128 << 10;

    /// Bytes waiting to be written below which a transfer adds a message. A message has at most 64
    /// KiB, so some room for replies remains below [`HIGH_WATER`].
    pub(crate) const LOW_WATER: usize = 32 << 10;

    /// Transfers on one connection at a time: as many as a server has zones by default. Later
    /// queries wait until one transfer has ended.
    pub(crate) const TRANSFERS: usize = 3;

    /// Connections that may wait to be accepted. The kernel caps it at `net.core.somaxconn`.
    pub(crate) const BACKLOG: i32 = 1024;

    /// Connections with data in their first packet that may wait to be accepted.
    pub(crate) const FAST_OPEN: i32 = 256;

    /// Pause after an error of the listener, as opposed to an error of one connection.
    pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

    /// Interval between log lines about errors of the listener. They concern the host, and tend to
    /// last.
    pub(crate) const WARN_INTERVAL: Duration = Duration::from_secs(60);

    /// Time between two reads of the certificate and key files, to find a new certificate.
    pub(crate) const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(3);
}

/// Limits of HTTPS connections.
pub(crate) mod https {
    use std::time::Duration;

    /// Divisor of `--tcp-max-connections` that gives the largest number of HTTPS connections.
    pub(crate) const HTTPS_SHARE: usize = 16;

    /// Time limit for an HTTP request to arrive and be answered.
    pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

    /// Time limit for a connection without requests; the same as for TCP.
    pub(crate) const IDLE_TIME: Duration = Duration::from_secs(30);

    /// Time between two pings, and time limit for the answer to one, so that dead peers are
    /// noticed.
    pub(crate) const PING: Duration = Duration::from_secs(20);

    /// Limit on concurrent requests of one connection: the minimum that RFC 9113 §6.5.2 recommends.
    pub(crate) const STREAMS: u32 = 100;

    /// Limit on replies of one connection that its client has not read, of 64 KiB each. Further
    /// queries wait.
    pub(crate) const REPLIES: usize = 16;

    /// Bytes in flight on one stream in each direction: room for one message.
    pub(crate) const STREAM_WINDOW: u32 = 68 << 10;

    /// Bytes of requests that a client may send ahead on one connection.
    pub(crate) const WINDOW: u32 = 256 << 10;

    /// Limit on the bytes of a request's head. A query in a URL needs at most some 700.
    pub(crate) const MAX_HEAD: u32 = 8 << 10;
}

/// Limits of QUIC connections.
pub(crate) mod quic {
    use std::time::Duration;

    /// Divisor of `--tcp-max-connections` that gives the largest number of QUIC connections.
    pub(crate) const QUIC_SHARE: usize = 16;

    /// Time limit for a QUIC handshake.
    pub(crate) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

    /// Time limit for a connection without packets, and for one without queries; the same as for
    /// TCP. It exceeds the time limit of a stream, so no stream is open when it ends.
    pub(crate) const IDLE_TIME: Duration = Duration::from_secs(30);

    /// Time limit for a query to arrive, and for its reply to be acknowledged.
    pub(crate) const STREAM_TIME: Duration = Duration::from_secs(10);

    /// Time limit for the queries that are in progress when their connection is closed.
    pub(crate) const GRACE: Duration = Duration::from_secs(5);

    /// Time limit for clients to see that a stopping server has closed their connections.
    pub(crate) const CLOSE_TIME: Duration = Duration::from_secs(1);

    /// Number of handshakes in progress beyond which new clients must prove their address first.
    pub(crate) const MAX_UNVALIDATED: usize = 8;

    /// Limit on connections that wait in the endpoint to be accepted. The accept loop takes them at
    /// once.
    pub(crate) const MAX_PENDING: usize = 256;

    /// Limit on the bytes that a client may send before its connection is accepted.
    pub(crate) const PENDING_BYTES: u64 = 16 << 10;

    /// Limit on the queries that one connection may have in progress.
    pub(crate) const STREAMS: u8 = 16;

    /// Bytes of a query in flight, or received out of order. Longer queries arrive in parts.
    pub(crate) const STREAM_WINDOW: u32 = 4 << 10;

    /// Bytes of replies that may be on their way to the client of one connection.
    pub(crate) const WINDOW: u32 = 256 << 10;
}

/// Limits of zone transfers, notifications and their signatures.
pub(crate) mod transfers {
    use std::time::Duration;

    /// Largest number of zone transfers that run at a time.
    pub(crate) const MAX_TRANSFERS: usize = 32;

    /// Time after which a transfer is stalled if its client takes no message (of up to 64 KiB). A
    /// stalled transfer is ended when a new one needs its place.
    pub(crate) const STALL_TIME: Duration = Duration::from_secs(1);

    /// Largest size, in bytes, of the changes of a zone that are kept for incremental transfers.
    pub(crate) const JOURNAL_BYTES: usize = 16 << 20;

    /// Largest number of a zone's versions whose changes are kept for incremental transfers.
    pub(crate) const JOURNAL_DIFFERENCES: usize = 4096;

    /// Largest number of serials that are remembered for all zones, of 4 bytes each.
    pub(crate) const JOURNAL_SERIALS: usize = 1_048_576;

    /// Shortest time between two notifications of one secondary about the same zone.
    pub(crate) const NOTIFY_INTERVAL: Duration = Duration::from_millis(200);

    /// Time to wait for the first answer to a notification. It doubles with each attempt.
    pub(crate) const FIRST_WAIT: Duration = Duration::from_secs(1);

    /// Longest time to wait for an answer to a notification before the notification is repeated.
    pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(15);

    /// Number of unanswered notifications in a row after which a warning is logged.
    pub(crate) const WARN_AFTER: u32 = 3;

    /// Largest difference between the clocks of both sides of a signature, in seconds (RFC 8945
    /// §10).
    pub(crate) const FUDGE: u16 = 300;

    /// Length of the shortest secret that is accepted, in bytes. RFC 8945 §10 recommends the length
    /// of the hash, which the generators of BIND and Knot use.
    pub(crate) const MIN_SECRET: usize = 16;
}

/// Limits of the files that are given by `--manifests`.
pub(crate) mod manifests {
    use std::time::Duration;

    /// Pause between two scans for changed files.
    pub(crate) const PAUSE: Duration = Duration::from_millis(150);

    /// Shortest pause, in durations of the scan before it, so that many files cost at most a
    /// twentieth of a core.
    pub(crate) const PAUSE_PER_SCAN: u32 = 19;

    /// Time for which a file must stay the same before it is read. The time exceeds the pauses of
    /// programs that write piece by piece, and still lets a change be served within a second.
    pub(crate) const QUIET: Duration = Duration::from_millis(700);

    /// Longest wait for a file that keeps changing. The file is then read as it is, so that a
    /// program that rewrites it all the time does not keep its changes from being served.
    pub(crate) const LONGEST: Duration = Duration::from_secs(5);

    /// Time within which two changes may leave the same time stamp, on coarse file systems.
    pub(crate) const COARSE: Duration = Duration::from_secs(3);

    /// Largest manifest file that is read, in bytes.
    pub(crate) const MAX_FILE: u64 = 64 << 20;

    /// Limit on the folder entries that one scan visits, so that `--manifests /` fails soon.
    pub(crate) const MAX_ENTRIES: usize = 200_000;

    /// Limit on the YAML or JSON values in one file: enough for some 200,000 endpoints.
    pub(crate) const MAX_NODES: usize = 8_000_000;

    /// Limit on the parser events that aliases repeat in one file, against "billion laughs".
    pub(crate) const MAX_REPEATED: usize = 250_000;
}

/// Limits of the snapshot file and of its writer.
pub(crate) mod snapshot {
    use std::time::Duration;

    /// Time between two checks for changes, so that a burst of changes is written once.
    pub(crate) const INTERVAL: Duration = Duration::from_secs(1);

    /// Share of the time that writing may take: one part in this many, however large the cluster
    /// and fast its changes.
    pub(crate) const SHARE: u32 = 20;

    /// Longest pause after failures to write. A full disk may have room again later.
    pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(600);

    /// Largest length of a row in bytes. A slice has at most a thousand endpoints, so no row is as
    /// long.
    pub(crate) const MAX_ROW: u32 = 64 << 20;

    /// Time, in seconds, by which a snapshot's time may lie in the future: its writer's clock was
    /// ahead.
    pub(crate) const SKEW_SECONDS: i64 = 60;
}

/// Limits of the queue and connection to the dnstap collector.
pub(crate) mod dnstap {
    use std::time::Duration;

    /// Capacity of the queue to the collector, in exchanges of a query and its reply.
    pub(crate) const QUEUE: usize = 8192;

    /// Capacity of the queue to the collector, in bytes of queries and replies.
    pub(crate) const QUEUE_BYTES: usize = 16 << 20;

    /// Time limit for connecting to the collector, for its handshake, and for each write.
    pub(crate) const COLLECTOR_TIMEOUT: Duration = Duration::from_secs(5);

    /// Time limit for the collector to confirm at the end that it has received everything.
    pub(crate) const FINISH_TIME: Duration = Duration::from_secs(1);

    /// Pause after the first failure of the connection to the collector. It doubles with each
    /// failure.
    pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(250);

    /// Longest pause after failures of the connection to the collector.
    pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(15);
}

/// Limits of `/debug/top`, the list of the most frequent queries.
pub(crate) mod debug {
    /// Largest number of different queries that are counted at a time.
    pub(crate) const MAX_CAPACITY: u16 = 1000;
}
