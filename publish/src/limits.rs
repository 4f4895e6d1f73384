//! All limits of the publisher and the defaults of its flags, with their units and reasons.
//! Durations state their unit, sizes are in bytes.
//!
//! docs/reference.md lists them; `tests/tools/limits.sh --write` writes that list.

/// Defaults of the command-line flags.
pub(crate) mod flags {
    /// Default of `--prefix`: the path of CoreDNS' plugin etcd.
    pub(crate) const PREFIX: &str = "/skydns";

    /// Default of `--zone`: zone that services have their names in.
    pub(crate) const ZONE: &str = "multinet.cluster.local";

    /// Default of `--ttl` in seconds, as in multinet-dns.
    pub(crate) const TTL: u32 = 5;
}

/// Keys of what tenants write. A key has some 250 bytes, and etcd stores 2 GiB by default, with its
/// history.
pub(crate) mod keys {
    /// Maximum number of keys of a service and its vertex, in all zones. Further endpoints have
    /// none. CoreDNS reads all keys of a service for a question about it.
    pub(crate) const MAX_KEYS_OF_SERVICE: usize = 20_000;

    /// Maximum number of keys of all services in a namespace. The newest services that do not fit
    /// have none.
    pub(crate) const MAX_KEYS_OF_NAMESPACE: usize = 100_000;
}

/// Requests to etcd.
pub(crate) mod etcd {
    use std::time::Duration;

    /// Time limit for a connection to be made.
    pub(crate) const CONNECT_TIME: Duration = Duration::from_secs(5);

    /// Time limit for a request. etcd answers in milliseconds, unless it elects a leader.
    pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

    /// Time between two checks of an idle connection.
    pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

    /// Changes in one transaction. etcd allows 128 operations and as many comparisons
    /// (`--max-txn-ops`). There is one comparison for each change, and one for the owner.
    pub(crate) const CHANGES: usize = 120;

    /// Keys in one page of a list.
    pub(crate) const PAGE: usize = 500;

    /// Largest answer. Other programs' values may have up to 1.5 MiB each.
    pub(crate) const ANSWER: usize = 1024 << 20;

    /// Time between two lists of all keys, which find what others have changed. Each begins with a
    /// new connection, before a token of etcd's users expires (5 minutes by default).
    pub(crate) const RELIST: Duration = Duration::from_secs(240);

    /// Shortest pause after a failure. It doubles with each further one.
    pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_millis(500);

    /// Longest pause after a failure.
    pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);
}

/// Shutdown of the process.
pub(crate) mod process {
    use std::time::Duration;

    /// Time that a shutdown may take: that of a request, and of the release of the Lease.
    pub(crate) const DEADLINE: Duration = Duration::from_secs(15);
}
