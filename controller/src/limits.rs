//! All limits of the controller and the defaults of its flags, with their units and reasons.
//! Durations state their unit, sizes are in bytes.
//!
//! docs/reference.md lists them; `tests/tools/limits.sh --write` writes that list.

/// Defaults of the command-line flags.
pub(crate) mod flags {
    /// Default of `--zone`: zone of the DNS server, for `status.hostname`.
    pub(crate) const ZONE: &str = "multinet.cluster.local";

    /// Default of `--max-endpoints-per-slice`: endpoints in a slice. Larger slices make changes
    /// dearer, smaller ones take more memory (docs/benchmarks.md).
    pub(crate) const ENDPOINTS_PER_SLICE: u16 = 25;

    /// Default of `--max-endpoints-per-mirror-slice`: endpoints in a slice of a mirror, as in
    /// Kubernetes' own slices.
    pub(crate) const ENDPOINTS_PER_MIRROR_SLICE: u16 = 100;

    /// Default of `--max-addresses-per-pod`: published addresses of a pod on a network.
    pub(crate) const ADDRESSES_PER_POD: u32 = 64;

    /// Default of `--max-addresses-per-service`: published addresses of a service, over all of its
    /// networks.
    pub(crate) const ADDRESSES_PER_SERVICE: u32 = 50_000;

    /// Default of `--max-addresses-per-namespace`: published addresses of all services in a
    /// namespace, so that one tenant cannot exhaust the memory of multinet-dns.
    pub(crate) const ADDRESSES_PER_NAMESPACE: u32 = 200_000;

    /// Default of `--concurrent-writes`: concurrent requests to the API server.
    pub(crate) const CONCURRENT_WRITES: u16 = 32;
}

/// Shutdown and threads of the process.
pub(crate) mod process {
    use std::time::Duration;

    /// Time that a shutdown may take. It exceeds the limits of the writer and of the lease.
    pub(crate) const DEADLINE: Duration = Duration::from_secs(12);

    /// Minimum number of worker threads. More threads than can wait for the index's lock at a time,
    /// so that lease renewals and probes always find one.
    pub(crate) const THREADS: usize = 4;
}

/// Lists of objects that a new leader begins with.
pub(crate) mod leader {
    use std::time::Duration;

    /// Maximum age of the lists that a new leader begins with. A process that has just started need
    /// not list again.
    pub(crate) const FRESH: Duration = Duration::from_secs(5);

    /// Time that a new leader waits for lists. After that, it begins with what it knows, like a
    /// leader whose watch fails. One kind that cannot be listed must not keep the others from being
    /// written.
    pub(crate) const LISTING: Duration = Duration::from_secs(30);
}

/// Writes of slices and statuses.
pub(crate) mod writes {
    use std::time::Duration;

    /// Time limit for a request. The API server normally needs milliseconds, but etcd may be
    /// electing a leader.
    pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

    /// Maximum number of writes per turn for slices, and the same for mirrors. The rest follows in
    /// further turns. Otherwise a huge service would block the others of its namespace, and its own
    /// changes would wait too.
    pub(crate) const WRITES: usize = 128;

    /// Number of times that a service is planned in one turn, if its slices turn out to differ from
    /// the index.
    pub(crate) const ATTEMPTS: u32 = 4;

    /// Number of consecutive failures, of a kind that may pass by itself, before the service's
    /// status reports them.
    pub(crate) const FAILURES_BEFORE_STATUS: u32 = 3;

    /// Time to finish the writer's requests during a graceful shutdown.
    pub(crate) const FINISH: Duration = Duration::from_secs(5);

    /// Interval between merges of half-empty slices, over all services.
    pub(crate) const MERGE_PAUSE: Duration = Duration::from_millis(100);

    /// Minimum interval between merges of one service, which also precedes the first one.
    pub(crate) const MERGE_PAUSE_OF_SERVICE: Duration = Duration::from_secs(1);

    /// Number of status writes in a row. The normal life of a service needs fewer; an annotation
    /// that keeps changing needs more.
    pub(crate) const STATUS_BURST: u32 = 25;

    /// Interval between further status writes of a service.
    pub(crate) const STATUS_INTERVAL: Duration = Duration::from_secs(10);

    /// Time without a turn of the service after which the numbers in its status are written.
    pub(crate) const NUMBERS_PAUSE: Duration = Duration::from_secs(1);

    /// Longest time that changed numbers in a status wait to be written.
    pub(crate) const NUMBERS_LONGEST: Duration = Duration::from_secs(10);
}

/// Pauses of a service after failures and turns.
pub(crate) mod retries {
    use std::time::Duration;

    /// First pause after a failure of a service. It doubles with each further failure.
    pub(crate) const FIRST: Duration = Duration::from_millis(200);

    /// Longest pause after a failure that does not concern the service, such as an unreachable API
    /// server. The controller notices a recovery within this time.
    pub(crate) const LONGEST_OUTAGE: Duration = Duration::from_secs(5);

    /// Longest pause of a service after a failure that concerns no other service.
    pub(crate) const LONGEST: Duration = Duration::from_secs(30);

    /// Longest pause before a retry that an API server may request.
    pub(crate) const LONGEST_ASKED: Duration = Duration::from_secs(30);

    /// First cooldown of a service after a turn: about as long as a write takes.
    pub(crate) const FIRST_COOLDOWN: Duration = Duration::from_millis(10);

    /// Longest cooldown after a turn. This bounds the delay of changes to a service that keeps
    /// changing.
    pub(crate) const LONGEST_COOLDOWN: Duration = Duration::from_millis(500);
}

/// Kubernetes events, which the controller publishes from notices.
pub(crate) mod events {
    use std::time::Duration;

    /// Maximum number of notices per namespace that wait to be written as events.
    pub(crate) const QUEUE: usize = 64;

    /// Number of events that an object may have in a row, as in client-go. Changes by people stay
    /// below it. An annotation that a program keeps changing does not.
    pub(crate) const BURST: u32 = 25;

    /// Interval between further events of an object after the burst, as in client-go.
    pub(crate) const INTERVAL: Duration = Duration::from_secs(5 * 60);

    /// Time limit for writing one event.
    pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(10);

    /// Time after an event within which an equal notice repeats that event, as in client-go.
    pub(crate) const SERIES: Duration = Duration::from_secs(6 * 60);

    /// Maximum number of series of equal events that are remembered, in order to recognize
    /// repetitions.
    pub(crate) const REMEMBERED: usize = 1024;
}

/// Contents of pods and claims. Users and drivers write them, so they are bounded.
pub(crate) mod pods {
    /// Maximum number of attachments of a pod. A node has tens of NICs, not hundreds.
    pub const MAX_ATTACHMENTS: usize = 64;

    /// Maximum number of networks that are read from a pod's request for networks.
    pub(crate) const MAX_REQUESTS: usize = 64;

    /// Maximum number of networks of a pod in the annotation of OVN-Kubernetes.
    pub(crate) const MAX_NETWORKS: usize = 64;

    /// Maximum number of addresses of an interface. The API server allows no more in a claim's
    /// device status.
    pub(crate) const MAX_ADDRESSES: usize = 16;

    /// Number of problems of a pod or claim that are reported one by one. Others are only counted.
    pub(crate) const MAX_PROBLEMS: usize = 8;

    /// Maximum number of pods of a virtual machine with the same address that are examined one by
    /// one.
    pub(crate) const MAX_SCANNED: usize = 64;
}

/// Discovery of the optional API groups.
pub(crate) mod discovery {
    use std::time::Duration;

    /// Interval between requests for the list of API groups.
    pub(crate) const POLL: Duration = Duration::from_secs(5);

    /// Pause after a failed request for the API groups at the start, before jitter.
    pub(crate) const RETRY: Duration = Duration::from_secs(1);

    /// Time for which a group must be missing before it counts as gone.
    pub(crate) const MIN_ABSENCE: Duration = Duration::from_secs(30);

    /// Number of lists in a row that must lack a group before it counts as gone.
    pub(crate) const MIN_POLLS: u32 = 3;
}
