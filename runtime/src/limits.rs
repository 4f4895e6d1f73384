//! Limits of this crate, which the servers share, with their units and reasons. Durations state
//! their unit, sizes are in bytes.
//!
//! docs/reference.md lists them; `tests/tools/limits.sh --write` writes that list.

/// The API server.
pub(crate) mod api {
    use std::time::Duration;

    /// Time limit for connecting, TLS included. It bounds attempts on an address that drops
    /// packets.
    pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

    /// Time without any byte of a request sent after which the request fails.
    pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_secs(15);

    /// Time without any byte received after which a connection counts as dead. Longer than
    /// [`WATCH_TIME`], so that no healthy watch is closed.
    pub(crate) const SILENCE: Duration = Duration::from_secs(35);

    /// Time after which the API server ends a watch, at our request.
    pub(crate) const WATCH_TIME: Duration = Duration::from_secs(30);

    /// Time limit for the head of the API server's answer to a watch.
    pub const ANSWER_TIME: Duration = Duration::from_secs(15);

    /// Time limit for a page of a list as a whole. The API server's own limit is 60 s.
    pub(crate) const LIST_TIME: Duration = Duration::from_secs(70);

    /// Time after which the API server ends a watch that begins with a list. Long enough for a long
    /// list.
    pub(crate) const STREAM_TIME: Duration = Duration::from_secs(290);

    /// Number of objects per page of a list. A page is in memory as a whole, as text and as
    /// objects.
    pub(crate) const PAGE: u32 = 100;

    /// Time after which an open watch counts as healthy, even without an event.
    pub(crate) const HEALTHY_AFTER: Duration = Duration::from_secs(1);

    /// Upper bound of the first pause after a failed request to the API server.
    pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(200);

    /// Upper bound of later pauses. An API server that is back is noticed within this time.
    pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

    /// Longest pause before the next request that an API server may ask for.
    pub(crate) const LONGEST_ASKED: Duration = Duration::from_secs(30);
}

/// The Lease of the leader.
pub(crate) mod lease {
    use std::time::Duration;

    /// Default of `--lease-duration`: time after which a silent leader loses the Lease, as in
    /// client-go.
    pub(crate) const DEFAULT_DURATION: &str = "15s";

    /// Shortest duration of a lease. The Lease object counts in whole seconds.
    pub const MIN_DURATION: Duration = Duration::from_secs(1);

    /// Longest duration of a lease. A leader that crashes is not replaced before it has passed.
    pub const MAX_DURATION: Duration = Duration::from_secs(3600);

    /// Longest time between two renewals of the Lease by the leader.
    pub(crate) const LONGEST_RENEWAL: Duration = Duration::from_secs(5);

    /// Longest time for a request about the Lease.
    pub(crate) const LONGEST_REQUEST: Duration = Duration::from_secs(10);
}

/// The address of `--admin`.
pub(crate) mod admin {
    use std::time::Duration;

    /// Limit of open connections to the admin endpoints.
    pub(crate) const MAX_CONNECTIONS: usize = 256;

    /// Time limit for the head of a request to the admin endpoints.
    pub(crate) const HEAD_TIME: Duration = Duration::from_secs(5);

    /// Size limit of a request's head and of the read buffer, in bytes.
    pub(crate) const MAX_HEAD: usize = 16 << 10;

    /// Time after which a connection is closed, whatever its state. Ample for a scrape over a slow
    /// line.
    pub(crate) const CONNECTION_TIME: Duration = Duration::from_secs(60);

    /// Time for admin requests under way to finish once the process shuts down.
    pub(crate) const LAST_REQUESTS: Duration = Duration::from_secs(1);

    /// Size limit of a request's body, in bytes. The only body is a log filter, which is short.
    pub(crate) const MAX_BODY: usize = 4096;

    /// Time limit for the body of a request to the admin endpoints, after its head.
    pub(crate) const BODY_TIME: Duration = Duration::from_secs(2);
}

/// The end of the process.
pub(crate) mod shutdown {
    use std::time::Duration;

    /// Time past the deadline of a shutdown after which the process is ended by force.
    pub(crate) const MARGIN: Duration = Duration::from_secs(1);

    /// Longest time to wait for the last log lines to be written.
    pub(crate) const LAST_LINES: Duration = Duration::from_secs(1);
}
